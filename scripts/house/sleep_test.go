package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// sleepExcuse begins a comment that permits a sleep on its line and states the reason, for example
// in a fake that takes time, or to vary the moment of an action. Sleeping in order to wait for an
// event is not permitted.
const sleepExcuse = "//house:sleep "

// TestTests_DoNotSleep refuses time.Sleep in tests, except in bubbles of testing/synctest and in
// functions that are called only there. A test that waits for a time instead of an event is slow on
// an idle machine and fails on a busy one. parts.Eventually waits for an event; parts.RepeatFor
// checks that a state does not change.
func TestTests_DoNotSleep(t *testing.T) {
	for folder, files := range parseTests(t) {
		if folder == "scripts/parts" {
			continue
		}
		for _, sleep := range realSleeps(files.files, files.parsed) {
			t.Errorf("%s/%s: sleeps outside synctest; use parts.Eventually, parts.Poll or parts.During, "+
				"or excuse it with %sREASON", folder, sleep, sleepExcuse)
		}
	}
}

func TestRealSleeps(t *testing.T) {
	for text, want := range map[string]int{
		`func TestA(t *testing.T) { time.Sleep(1) }`:                                               1,
		`func TestA(t *testing.T) { time.Sleep(1) //house:sleep a slow fake` + "\n}":               0,
		`func TestA(t *testing.T) { time.Sleep(1) //house:sleep ` + "\n}":                          1,
		`func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }`:      0,
		`func a() { time.Sleep(1) }; func TestA(t *testing.T) { a() }`:                             1,
		`func a() { time.Sleep(1) }`:                                                               1,
		`func a(t *testing.T) { time.Sleep(1) }; func TestA(t *testing.T) { synctest.Test(t, a) }`: 0,
		`func a() { time.Sleep(1) }; func b() { a() }
		 func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { b() }) }`: 0,
		`func a() { time.Sleep(1) }; func b() { a() }
		 func TestA(t *testing.T) { b(); synctest.Test(t, func(t *testing.T) { b() }) }`: 1,
		`func run(t *testing.T, f func()) { synctest.Test(t, func(t *testing.T) { f() }) }
		 func a() { time.Sleep(1) }; func TestA(t *testing.T) { run(t, func() { a() }) }`: 0,
		`type x struct{}; func (x) a() { time.Sleep(1) }
		 func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { x{}.a() }) }`: 0,
	} {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, "a_test.go", "package a\n"+text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if got := realSleeps(files, []*ast.File{file}); len(got) != want {
			t.Errorf("%s: %d real sleeps %v, want %d", text, len(got), got, want)
		}
	}
}

type testFiles struct {
	files  *token.FileSet
	parsed []*ast.File
}

// parseTests parses all test files of the module, by directory.
func parseTests(t *testing.T) map[string]*testFiles {
	t.Helper()
	all := map[string]*testFiles{}
	err := filepath.WalkDir(parts.RepositoryRoot(), func(path string, d fs.DirEntry,
		err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		folder, err := filepath.Rel(parts.RepositoryRoot(), filepath.Dir(path))
		if err != nil {
			return err
		}
		if all[folder] == nil {
			all[folder] = &testFiles{files: token.NewFileSet()}
		}
		file, err := parser.ParseFile(all[folder].files, path, nil,
			parser.SkipObjectResolution|parser.ParseComments)
		all[folder].parsed = append(all[folder].parsed, file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// realSleeps returns FILE:LINE of each time.Sleep that may run outside a synctest bubble. A
// function counts as running only in bubbles if only code in bubbles, or functions of this kind,
// refer to the function. Methods are identified by their name alone.
func realSleeps(files *token.FileSet, parsed []*ast.File) []string {
	excused, bubblers := excuses(files, parsed), bubblersOf(parsed)
	uses := map[string][]string{}      // functions that refer to a function outside of bubbles
	bubbled := map[string]bool{}       // functions to which code in a bubble refers
	sleeps := map[string][]token.Pos{} // positions of sleeps outside of bubbles, by function
	for _, file := range parsed {
		for _, d := range file.Decls {
			declared, ok := d.(*ast.FuncDecl)
			if !ok || declared.Body == nil {
				continue
			}
			name := functionName(declared)
			use := func(function string, inBubble bool) {
				if inBubble {
					bubbled[function] = true
				} else {
					uses[function] = append(uses[function], name)
				}
			}
			var visit func(inBubble bool) func(ast.Node) bool
			visit = func(inBubble bool) func(ast.Node) bool {
				return func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.CallExpr:
						if bubblers[calleeOf(n)] {
							for _, argument := range n.Args {
								_, literal := argument.(*ast.FuncLit)
								ast.Inspect(argument, visit(inBubble || literal || calleeOf(n) == "synctest.Test"))
							}
							ast.Inspect(n.Fun, visit(inBubble))
							return false
						}
						if calleeOf(n) == "time.Sleep" && !inBubble {
							sleeps[name] = append(sleeps[name], n.Pos())
						}
					case *ast.SelectorExpr:
						use("."+n.Sel.Name, inBubble)
						ast.Inspect(n.X, visit(inBubble))
						return false
					case *ast.Ident:
						use(n.Name, inBubble)
					}
					return true
				}
			}
			ast.Inspect(declared.Body, visit(false))
		}
	}
	var found []string
	for function, positions := range sleeps {
		if runsInBubbles(function, uses, bubbled, map[string]bool{}) {
			continue
		}
		for _, at := range positions {
			position := files.Position(at)
			position.Filename, position.Column = filepath.Base(position.Filename), 0
			if !excused[position.String()] {
				found = append(found, position.String())
			}
		}
	}
	return found
}

// runsInBubbles reports whether only bubbles, or functions that run only in bubbles, refer to a
// function.
func runsInBubbles(name string, uses map[string][]string, bubbled, seen map[string]bool) bool {
	if strings.HasPrefix(name, "Test") || seen[name] {
		return seen[name]
	}
	seen[name] = true
	for _, by := range uses[name] {
		if !runsInBubbles(by, uses, bubbled, seen) {
			return false
		}
	}
	return bubbled[name] || len(uses[name]) > 0
}

// bubblersOf returns the functions whose arguments run in a bubble if they are function literals:
// synctest.Test, and functions that call it.
func bubblersOf(parsed []*ast.File) map[string]bool {
	all := map[string]bool{"synctest.Test": true}
	for more := true; more; {
		more = false
		for _, file := range parsed {
			for _, d := range file.Decls {
				declared, ok := d.(*ast.FuncDecl)
				if !ok || declared.Body == nil || all[declared.Name.Name] ||
					strings.HasPrefix(declared.Name.Name, "Test") {
					continue
				}
				ast.Inspect(declared.Body, func(n ast.Node) bool {
					if call, ok := n.(*ast.CallExpr); ok && all[calleeOf(call)] {
						all[declared.Name.Name], more = true, true
					}
					return true
				})
			}
		}
	}
	return all
}

// functionName returns NAME for a function, .NAME for a method.
func functionName(declared *ast.FuncDecl) string {
	if declared.Recv != nil {
		return "." + declared.Name.Name
	}
	return declared.Name.Name
}

// calleeOf returns the name of the called function or method, with its package for packages time
// and synctest.
func calleeOf(call *ast.CallExpr) string {
	switch called := call.Fun.(type) {
	case *ast.Ident:
		return called.Name
	case *ast.SelectorExpr:
		if of, ok := called.X.(*ast.Ident); ok && (of.Name == "time" || of.Name == "synctest") {
			return of.Name + "." + called.Sel.Name
		}
		return called.Sel.Name
	}
	return ""
}

// excuses returns the set of FILE:LINE with a sleepExcuse that states a reason.
func excuses(files *token.FileSet, parsed []*ast.File) map[string]bool {
	excused := map[string]bool{}
	for _, file := range parsed {
		for _, group := range file.Comments {
			for _, comment := range group.List {
				reason, ok := strings.CutPrefix(comment.Text, sleepExcuse)
				if ok && strings.TrimSpace(reason) != "" {
					position := files.Position(comment.Pos())
					position.Filename, position.Column = filepath.Base(position.Filename), 0
					excused[position.String()] = true
				}
			}
		}
	}
	return excused
}
