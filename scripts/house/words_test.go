package house

import (
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const mostTerms = 40 // maximum number of terms in the glossary

// unclean contains the packages whose identifiers still contain words to avoid. Only removals from
// this list are permitted.
var unclean = []string{}

// wordsToAvoid returns the words that identifiers must not contain, with their replacements, from
// the table in CONTRIBUTING.md.
func wordsToAvoid(t *testing.T) map[string]string {
	t.Helper()
	_, section, found := strings.Cut(documents(t)["CONTRIBUTING.md"], "\n## Words\n")
	if !found {
		t.Fatal("CONTRIBUTING.md has no section \"Words\"")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	quoted := regexp.MustCompile("`([a-z]+)`")
	words := map[string]string{}
	for line := range strings.SplitSeq(section, "\n") {
		if cells := strings.Split(line, "|"); len(cells) == 4 {
			for _, word := range quoted.FindAllStringSubmatch(cells[1], -1) {
				words[word[1]] = strings.TrimSpace(cells[2])
			}
		}
	}
	if len(words) < 20 {
		t.Fatalf("CONTRIBUTING.md lists %d words to avoid", len(words))
	}
	return words
}

// wordsOf splits an identifier into lower-case words, at its capital letters and underscores.
func wordsOf(name string) (words []string) {
	runes := []rune(name)
	start := 0
	for i := 1; i <= len(runes); i++ {
		if i < len(runes) && runes[i] != '_' && (!unicode.IsUpper(runes[i]) ||
			unicode.IsUpper(runes[i-1]) && (i+1 == len(runes) || !unicode.IsLower(runes[i+1]))) {
			continue
		}
		words = append(words, strings.ToLower(strings.Trim(string(runes[start:i]), "_")))
		start = i
	}
	return words
}

func TestWordsOf(t *testing.T) {
	for name, want := range map[string]string{"settleDrain": "settle drain", "ErrTaken": "err taken",
		"HTTPServer": "http server", "noFollow_2": "no follow 2", "here": "here", "xDS": "x ds"} {
		if got := strings.Join(wordsOf(name), " "); got != want {
			t.Errorf("%s: %q, not %q", name, got, want)
		}
	}
}

// declared calls visit with each identifier that a file declares.
func declared(file *ast.File, visit func(*ast.Ident)) {
	visit(file.Name)
	identifiers := func(expressions ...ast.Expr) {
		for _, e := range expressions {
			if name, ok := e.(*ast.Ident); ok {
				visit(name)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			visit(n.Name)
		case *ast.TypeSpec:
			visit(n.Name)
		case *ast.ValueSpec:
			for _, name := range n.Names {
				visit(name)
			}
		case *ast.Field:
			for _, name := range n.Names {
				visit(name)
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				identifiers(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				identifiers(n.Key, n.Value)
			}
		}
		return true
	})
}

func TestWords_AreOfTheField(t *testing.T) {
	words := wordsToAvoid(t)
	source := parseSource(t)
	for folder, files := range source.packages {
		var found []string
		for _, file := range files {
			declared(file, func(name *ast.Ident) {
				for _, word := range wordsOf(name.Name) {
					if instead, avoid := words[word]; avoid {
						found = append(found, source.position(name)+": "+name.Name+
							" contains a word to avoid; write: "+instead)
					}
				}
			})
		}
		listed := slices.Contains(unclean, folder)
		switch {
		case len(found) > 0 && !listed:
			t.Error(strings.Join(found, "\n"))
		case len(found) == 0 && listed:
			t.Logf("%s is clean: remove it from the list in words_test.go", folder)
		}
	}
}

func TestGlossary_HasFewTerms(t *testing.T) {
	terms := map[string]bool{}
	for line := range strings.SplitSeq(documents(t)["docs/glossary.md"], "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		term := strings.TrimSpace(cells[1])
		if term == "term" || strings.Trim(term, "-") == "" || strings.HasPrefix(term, "**") {
			continue
		}
		if terms[term] {
			t.Errorf("%s is there twice", term)
		}
		terms[term] = true
	}
	if len(terms) > mostTerms || len(terms) < mostTerms/2 {
		t.Errorf("docs/glossary.md has %d terms, at most %d", len(terms), mostTerms)
	}
}
