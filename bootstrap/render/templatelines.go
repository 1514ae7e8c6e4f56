package render

import (
	"bytes"
	"errors"
	"fmt"
	"text/template"
	tree "text/template/parse"

	"outrider.org/outrider/bootstrap"
)

// rendering is the output of a template, at most maxRendered bytes, with the template line that
// each output line comes from. The output itself is not shown to users, as it may contain
// credentials.
type rendering struct {
	text bytes.Buffer
	// begins has the template line of each literal text, by the address of its first byte:
	// text/template writes these texts without copying.
	begins map[*byte]int
	line   int // current template line
	// sources has the template line of each output line except the first.
	sources []int
}

// newRendering returns a rendering of a parsed template.
func newRendering(source []byte, parsed *template.Template) *rendering {
	r := &rendering{begins: map[*byte]int{}, line: 1}
	for _, one := range parsed.Templates() {
		if one.Tree != nil {
			r.index(source, one.Root)
		}
	}
	return r
}

// index records the literal texts.
func (r *rendering) index(source []byte, node tree.Node) {
	branch := func(b tree.BranchNode) {
		r.index(source, b.List)
		if b.ElseList != nil {
			r.index(source, b.ElseList)
		}
	}
	switch node := node.(type) {
	case *tree.ListNode:
		for _, child := range node.Nodes {
			r.index(source, child)
		}
	case *tree.TextNode:
		r.begins[&node.Text[0]] = 1 + bytes.Count(source[:node.Pos], []byte("\n"))
	case *tree.IfNode:
		branch(node.BranchNode)
	case *tree.RangeNode:
		branch(node.BranchNode)
	case *tree.WithNode:
		branch(node.BranchNode)
	}
}

// Write appends a literal text or a value.
func (r *rendering) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if r.text.Len()+len(p) > maxRendered {
		return 0, fmt.Errorf("the template writes more than %d bytes", maxRendered)
	}
	begins, literal := r.begins[&p[0]]
	if literal {
		r.line = begins
	}
	for range bytes.Count(p, []byte("\n")) {
		if literal {
			r.line++
		}
		r.sources = append(r.sources, r.line)
	}
	return r.text.Write(p)
}

// locate converts the position of an error in the output to one in the template.
func (r *rendering) locate(file string, err error) error {
	wrong, ok := errors.AsType[*bootstrap.Error](err)
	if !ok {
		return err
	}
	located := &bootstrap.Error{File: file, Line: wrong.Line, Message: wrong.Message +
		", as rendered"}
	if index := wrong.Line - 2; index >= 0 && index < len(r.sources) {
		located.Line = r.sources[index]
	}
	return located
}
