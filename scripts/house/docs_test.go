package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"outrider.org/outrider/scripts/parts"
)

// Limits for the documentation.
const (
	mostColumns           = 120
	mostParagraph         = 6    // in lines
	mostArchitectureWords = 2250 // docs/architecture.md
	mostDecisionWords     = 550  // a file in docs/decisions: one page
)

// documents returns the texts of the contributor documentation, by path relative to the
// repository's root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pattern := range []string{"CONTRIBUTING.md", "README.md", "docs/*.md", "docs/*/*.md"} {
		paths, err := filepath.Glob(filepath.Join(parts.RepositoryRoot(), pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("no document matches %s (%v)", pattern, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			name, err := filepath.Rel(parts.RepositoryRoot(), path)
			if err != nil {
				t.Fatal(err)
			}
			found[name] = string(text)
		}
	}
	return found
}

func TestDecisions_AreListed(t *testing.T) {
	all := documents(t)
	list := all["docs/decisions/README.md"]
	for name := range all {
		base, numbered := strings.CutPrefix(name, "docs/decisions/0")
		if numbered && !strings.Contains(list, "(0"+base+")") {
			t.Errorf("docs/decisions/README.md does not list 0%s", base)
		}
	}
}

func TestDocuments_LinksLeadToFiles(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for name, text := range documents(t) {
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			target := filepath.Join(parts.RepositoryRoot(), filepath.Dir(name), found[1])
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", name, found[1], err)
			}
		}
	}
}

func TestDocuments_StayReadable(t *testing.T) {
	for name, text := range documents(t) {
		// README.md is skipped, because it contains output of programs.
		if name == "README.md" {
			continue
		}
		words, limit := len(strings.Fields(text)), 0
		switch {
		case name == "docs/architecture.md":
			limit = mostArchitectureWords
		case strings.HasPrefix(name, "docs/decisions/0"):
			limit = mostDecisionWords
		}
		if limit > 0 && words > limit {
			t.Errorf("%s has %d words, at most %d", name, words, limit)
		}
		for i, paragraph := range paragraphs(text) {
			if len(paragraph) > mostParagraph {
				t.Errorf("%s: paragraph %d has %d lines: %s", name, i, len(paragraph), paragraph[0])
			}
		}
		for i, line := range strings.Split(text, "\n") {
			if columns := utf8.RuneCountInString(line); columns > mostColumns {
				t.Errorf("%s:%d: %d columns, at most %d", name, i+1, columns, mostColumns)
			}
		}
	}
}

// paragraphs returns the lines of each paragraph and list item, without code and tables.
func paragraphs(text string) (all [][]string) {
	item := regexp.MustCompile(`^\s*([-*]|\d+\.) `)
	var paragraph []string
	end := func() {
		if len(paragraph) > 0 {
			all = append(all, paragraph)
		}
		paragraph = nil
	}
	code := false
	for line := range strings.SplitSeq(text, "\n") {
		fence := strings.HasPrefix(line, "```")
		switch {
		case fence, code, strings.TrimSpace(line) == "",
			strings.HasPrefix(line, "|"), strings.HasPrefix(line, "#"):
			end()
			code = code != fence
		case item.MatchString(line):
			end()
			paragraph = []string{line}
		default:
			paragraph = append(paragraph, line)
		}
	}
	end()
	return all
}

// TestDocuments_PathsExist checks that all files exist to which architecture.md and CONTRIBUTING.md
// refer.
func TestDocuments_PathsExist(t *testing.T) {
	quoted := regexp.MustCompile("`((?:agent|bootstrap|cmd|packaging|scripts|units)/[^` ]*\\.[a-z]+)`")
	for _, name := range []string{"docs/architecture.md", "CONTRIBUTING.md"} {
		for _, found := range quoted.FindAllStringSubmatch(documents(t)[name], -1) {
			pattern := regexp.MustCompile(`\{.*\}`).ReplaceAllString(found[1], "*")
			if files, err := filepath.Glob(filepath.Join(parts.RepositoryRoot(),
				pattern)); err != nil || files == nil {
				t.Errorf("%s names %s, which does not exist (%v)", name, found[1], err)
			}
		}
	}
}

// TestWhereToLook_NamesExist checks that each function in docs/where-to-look.md exists in the file
// to which its entry refers.
func TestWhereToLook_NamesExist(t *testing.T) {
	table := documents(t)["docs/where-to-look.md"]
	quoted := regexp.MustCompile("`([^`]+)`")
	functions := 0
	for line := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			continue
		}
		folder, content := "", ""
		for _, name := range quoted.FindAllStringSubmatch(cells[2], -1) {
			name := name[1]
			if strings.Contains(name, "/") || strings.HasSuffix(name, ".go") {
				path := name
				if !strings.Contains(name, "/") {
					path = filepath.Join(folder, name)
				}
				folder = filepath.Dir(path)
				content = read(t, path)
				continue
			}
			functions++
			_, method, isMethod := strings.Cut(name, ".")
			if !isMethod {
				method = name
			}
			declared := regexp.MustCompile(
				`(?m)^(func (\([^)]*\) )?|type )` + regexp.QuoteMeta(method) + `\b`)
			if !declared.MatchString(content) {
				t.Errorf("%s: %s is not declared there", strings.TrimSpace(cells[1]), name)
			}
		}
	}
	if functions < 10 {
		t.Errorf("the table names %d functions", functions)
	}
}

// read returns the concatenated text of all files that match a pattern or are in a matching
// directory.
func read(t *testing.T, pattern string) string {
	t.Helper()
	path := filepath.Join(parts.RepositoryRoot(), pattern)
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "*.go")
	}
	files, err := filepath.Glob(path)
	if err != nil || len(files) == 0 {
		t.Errorf("a document names %s, which does not exist (%v)", pattern, err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
