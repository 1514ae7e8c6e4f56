package house

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// computedCode is the prefix of the only condition code that is no constant: the type of the
// refused resources is appended to it.
const computedCode = "resources-refused-"

// codesOf returns the names of the constants that contain condition codes, by code. These are
// string constants in packages below agent whose name begins with condition or code.
func codesOf(s source) map[string][]string {
	names := map[string][]string{}
	for folder, files := range s.packages {
		if !strings.HasPrefix(folder, "agent") || folder == "agent/keeper" {
			continue
		}
		for _, file := range files {
			ast.Inspect(file, func(n ast.Node) bool {
				spec, ok := n.(*ast.ValueSpec)
				if !ok {
					return true
				}
				for i, name := range spec.Names {
					lower := strings.ToLower(name.Name)
					if i >= len(spec.Values) || !strings.HasPrefix(lower, "condition") &&
						!strings.HasPrefix(lower, "code") {
						continue
					}
					if value, ok := spec.Values[i].(*ast.BasicLit); ok && value.Kind == token.STRING {
						code, _ := strconv.Unquote(value.Value)
						if strings.Contains(code, "-") {
							names[code] = append(names[code], name.Name)
						}
					}
				}
				return true
			})
		}
	}
	return names
}

// TestConditions_AreListed checks that docs/conditions.md lists exactly the condition codes in the
// source, each with the file that raises the condition.
func TestConditions_AreListed(t *testing.T) {
	codes := codesOf(parseSource(t))
	listed := map[string]bool{}
	code, path := regexp.MustCompile("^`([a-z0-9-]+)…?`$"), regexp.MustCompile("^`([a-z_/]+\\.go)`$")
	severity := regexp.MustCompile(`^(info|warning|error)(, (warning|error))?$`)
	for line := range strings.SplitSeq(documents(t)["docs/conditions.md"], "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 7 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		found := code.FindStringSubmatch(cells[1])
		if found == nil {
			continue
		}
		name := found[1]
		if listed[name] {
			t.Errorf("%s is listed twice", name)
		}
		listed[name] = true
		if !severity.MatchString(cells[2]) || cells[3] == "" || cells[4] == "" {
			t.Errorf("%s has no severity, meaning or advice", name)
		}
		file := path.FindStringSubmatch(cells[5])
		if file == nil {
			t.Errorf("%s has no file", name)
			continue
		}
		text := read(t, "agent/"+file[1])
		raises := name == computedCode && strings.Contains(text, name)
		for _, constant := range codes[name] {
			raises = raises || regexp.MustCompile(`\b`+constant+`\b`).MatchString(text)
		}
		if !raises {
			t.Errorf("agent/%s does not raise %s", file[1], name)
		}
	}
	for code, names := range codes {
		if !listed[code] {
			t.Errorf("docs/conditions.md does not list %s (%v)", code, names)
		}
	}
	for code := range listed {
		if codes[code] == nil && code != computedCode {
			t.Errorf("docs/conditions.md lists %s, which no part raises", code)
		}
	}
}
