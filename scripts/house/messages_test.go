package house

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Files whose log messages need not be constant.
var (
	sentences = []string{
		"agent/journal/events.go", // logs the sentences of conditions and events
	}
)

// messageArgument returns the index of the log message among the arguments of a slog method. It
// returns false for other methods.
func messageArgument(method string) (int, bool) {
	switch method {
	case "Debug", "Info", "Warn", "Error":
		return 0, true
	case "DebugContext", "InfoContext", "WarnContext", "ErrorContext":
		return 1, true
	case "Log", "LogAttrs":
		return 2, true
	}
	return 0, false
}

var logger = regexp.MustCompile(`(?i)log(ger|of)?$`)

// isLogger reports whether an expression is a logger, according to its name: log, x.Logger,
// a.logOf("dns").
func isLogger(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return logger.MatchString(e.Name)
	case *ast.SelectorExpr:
		return logger.MatchString(e.Sel.Name)
	case *ast.CallExpr:
		if method, ok := e.Fun.(*ast.SelectorExpr); ok && method.Sel.Name == "With" {
			return isLogger(method.X)
		}
		return isLogger(e.Fun)
	}
	return false
}

// use is an expression that is used as a text, with the function that contains it; nil: none.
type use struct {
	expression ast.Expr
	in         *ast.FuncDecl
}

// texts determines which expressions in a package are constant texts.
type texts struct {
	constants map[string]bool
	arguments map[string][][]use // arguments of all calls, by name of the called function
	fields    map[string][]use   // values assigned to fields, by name of the field
	variables map[*ast.FuncDecl]map[string][]use
	visiting  map[use]bool
}

func textsOf(files []*ast.File) *texts {
	t := &texts{map[string]bool{}, map[string][][]use{}, map[string][]use{},
		map[*ast.FuncDecl]map[string][]use{}, map[use]bool{}}
	for _, file := range files {
		for _, declaration := range file.Decls {
			function, _ := declaration.(*ast.FuncDecl)
			t.variables[function] = map[string][]use{}
			ast.Inspect(declaration, func(n ast.Node) bool {
				t.record(n, function)
				return true
			})
		}
	}
	return t
}

func (t *texts) record(n ast.Node, in *ast.FuncDecl) {
	switch n := n.(type) {
	case *ast.GenDecl:
		for _, spec := range n.Specs {
			if values, ok := spec.(*ast.ValueSpec); ok && n.Tok == token.CONST {
				for _, name := range values.Names {
					t.constants[name.Name] = true
				}
			}
		}
	case *ast.CallExpr:
		var arguments []use
		for _, argument := range n.Args {
			arguments = append(arguments, use{argument, in})
		}
		name := nameOf(n.Fun)
		t.arguments[name] = append(t.arguments[name], arguments)
	case *ast.KeyValueExpr:
		name := nameOf(n.Key)
		t.fields[name] = append(t.fields[name], use{n.Value, in})
	case *ast.AssignStmt:
		for i, left := range n.Lhs {
			value := use{nil, in} // the result of a call with several results is not constant
			if len(n.Lhs) == len(n.Rhs) {
				value.expression = n.Rhs[i]
			}
			name := nameOf(left)
			if _, field := left.(*ast.SelectorExpr); field {
				t.fields[name] = append(t.fields[name], value)
			} else if in != nil {
				t.variables[in][name] = append(t.variables[in][name], value)
			}
		}
	}
}

// nameOf returns the last name in an expression such as x or a.b.x.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// constant reports whether a text is known at build time: a literal, a constant, a variable or
// field to which only constant texts are assigned, or a parameter for which every caller in the
// package passes a constant text.
func (t *texts) constant(u use) bool {
	if t.visiting[u] {
		// A value that is assigned to itself, directly or not, is constant if its other values are.
		return true
	}
	t.visiting[u] = true
	defer delete(t.visiting, u)
	switch e := u.expression.(type) {
	case *ast.BasicLit:
		return e.Kind == token.STRING
	case *ast.ParenExpr:
		return t.constant(use{e.X, u.in})
	case *ast.BinaryExpr:
		return e.Op == token.ADD && t.constant(use{e.X, u.in}) && t.constant(use{e.Y, u.in})
	case *ast.SelectorExpr:
		return t.all(t.fields[e.Sel.Name])
	case *ast.Ident:
		return t.constants[e.Name] || u.in != nil &&
			(t.all(t.variables[u.in][e.Name]) || t.parameter(e.Name, u.in))
	}
	return false
}

func (t *texts) all(values []use) bool {
	return len(values) > 0 && !slices.ContainsFunc(values, func(u use) bool { return !t.constant(u) })
}

// parameter reports whether all callers of a function pass a constant text for the parameter name.
func (t *texts) parameter(name string, of *ast.FuncDecl) bool {
	index := 0
	for _, field := range of.Type.Params.List {
		for _, parameter := range field.Names {
			if parameter.Name == name {
				var values []use
				for _, arguments := range t.arguments[of.Name.Name] {
					values = append(values, arguments[min(index, len(arguments)):min(index+1, len(arguments))]...)
				}
				return t.all(values)
			}
			index++
		}
	}
	return false
}

func TestLogMessages_AreConstant(t *testing.T) {
	source := parseSource(t)
	calls, found := 0, map[string][]string{}
	for _, files := range source.packages {
		texts := textsOf(files)
		for _, file := range files {
			for _, declaration := range file.Decls {
				function, ok := declaration.(*ast.FuncDecl)
				if !ok {
					continue
				}
				ast.Inspect(function, func(n ast.Node) bool {
					call, ok := n.(*ast.CallExpr)
					if !ok {
						return true
					}
					method, ok := call.Fun.(*ast.SelectorExpr)
					if !ok || !isLogger(method.X) {
						return true
					}
					i, ok := messageArgument(method.Sel.Name)
					if !ok || i >= len(call.Args) {
						return true
					}
					calls++
					if at := source.position(call); !texts.constant(use{call.Args[i], function}) {
						path, _, _ := strings.Cut(at, ":")
						found[path] = append(found[path], at)
					}
					return true
				})
			}
		}
	}
	for path, positions := range found {
		if !slices.Contains(sentences, path) {
			t.Errorf("log messages that are not constant (values are fields): %v", positions)
		}
	}
	for _, path := range sentences {
		if found[path] == nil {
			t.Logf("%s is clean: remove it from the list in messages_test.go", path)
		}
	}
	if calls < 100 {
		t.Errorf("only %d log calls found", calls)
	}
}
