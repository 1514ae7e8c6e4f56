package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// source holds the parsed Go files of the module, without tests, by directory.
type source struct {
	files    *token.FileSet
	packages map[string][]*ast.File // by directory, relative to the repository's root
}

// parseSource parses all Go files of the module that are not tests.
func parseSource(t *testing.T) source {
	t.Helper()
	s := source{token.NewFileSet(), map[string][]*ast.File{}}
	err := filepath.WalkDir(parts.RepositoryRoot(), func(path string, d fs.DirEntry,
		err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() && path != parts.RepositoryRoot():
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
				return fs.SkipDir // the directory belongs to another module
			}
			return nil
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(s.files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(parts.RepositoryRoot(), filepath.Dir(path))
		s.packages[folder] = append(s.packages[folder], file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// position returns FILE:LINE of a node, relative to the repository's root.
func (s source) position(n ast.Node) string {
	at := s.files.Position(n.Pos())
	at.Column = 0
	if name, err := filepath.Rel(parts.RepositoryRoot(), at.Filename); err == nil {
		at.Filename = name
	}
	return at.String()
}
