package validate

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// maxCELDepth bounds the nesting of an expression. Envoy's parser accepts up to 250.
const maxCELDepth = 32

// celToken matches one token of CEL: a string, bytes, a number, a name or an operator. White space
// and comments before the token have been removed.
var celToken = regexp.MustCompile(`^(?:` + strings.Join([]string{
	`(?s:[rR]?[bB]?"""(?:\\.|[^\\])*?"""|[rR]?[bB]?'''(?:\\.|[^\\])*?''')`,
	`[bB]?[rR]"[^"\r\n]*"|[bB]?[rR]'[^'\r\n]*'`,
	`[bB]?"(?:\\.|[^"\\\r\n])*"|[bB]?'(?:\\.|[^'\\\r\n])*'`,
	`0x[0-9a-fA-F]+[uU]?|[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|` +
		`\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[uU]?`,
	`[_a-zA-Z][_a-zA-Z0-9]*`,
	`&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}]`}, "|") + `)`)

var celSpace = regexp.MustCompile(`^(?:[ \t\r\n\f]+|//[^\n]*)+`)

// celReserved are names that CEL does not permit for a variable.
var celReserved = map[string]bool{"in": true, "as": true, "break": true, "const": true,
	"continue": true, "else": true, "for": true, "function": true, "if": true, "import": true,
	"let": true, "loop": true, "package": true, "namespace": true, "return": true, "var": true,
	"void": true, "while": true}

// celParser checks the syntax of CEL. Envoy refuses a listener whose expression it cannot parse.
type celParser struct {
	tokens []string // the last one is "", which marks the end
	depth  int
}

// checkCEL returns an error if a text is no CEL expression.
func checkCEL(text string) error {
	p := &celParser{}
	for rest := text; ; {
		rest = rest[len(celSpace.FindString(rest)):]
		if rest == "" {
			break
		}
		token := celToken.FindString(rest)
		if token == "" {
			return fmt.Errorf("unexpected %q", rest[:1])
		}
		p.tokens = append(p.tokens, token)
		rest = rest[len(token):]
	}
	p.tokens = append(p.tokens, "")
	if len(p.tokens) == 1 {
		return errors.New("the expression is empty")
	}
	if err := p.expression(); err != nil {
		return err
	}
	if p.tokens[0] != "" {
		return fmt.Errorf("unexpected %q", p.tokens[0])
	}
	return nil
}

// accept consumes the next token if it equals one of tokens, and reports whether it did.
func (p *celParser) accept(tokens ...string) bool {
	for _, token := range tokens {
		if p.tokens[0] == token && token != "" {
			p.tokens = p.tokens[1:]
			return true
		}
	}
	return false
}

func (p *celParser) expect(token string) error {
	if p.accept(token) {
		return nil
	}
	return p.unexpected()
}

func (p *celParser) unexpected() error {
	if p.tokens[0] == "" {
		return errors.New("the expression ends too early")
	}
	return fmt.Errorf("unexpected %q", p.tokens[0])
}

// expression parses operands with binary operators between them, and then an optional ?: operator.
func (p *celParser) expression() error {
	if p.depth++; p.depth > maxCELDepth {
		return fmt.Errorf("the expression is nested more than %d deep", maxCELDepth)
	}
	defer func() { p.depth-- }()
	for {
		if err := p.unary(); err != nil {
			return err
		}
		if !p.accept("||", "&&", "==", "!=", "<", "<=", ">", ">=", "in", "+", "-", "*", "/", "%") {
			break
		}
	}
	if !p.accept("?") {
		return nil
	}
	if err := p.expression(); err != nil {
		return err
	}
	if err := p.expect(":"); err != nil {
		return err
	}
	return p.expression()
}

// unary parses an operand with its prefixes and suffixes.
func (p *celParser) unary() error {
	for p.accept("!", "-") {
	}
	if err := p.primary(); err != nil {
		return err
	}
	for {
		var err error
		switch {
		case p.accept("."):
			p.accept("?")
			if err = p.name(true); err == nil && p.accept("(") {
				err = p.list(")", false)
			}
		case p.accept("["):
			p.accept("?")
			if err = p.expression(); err == nil {
				err = p.expect("]")
			}
		case p.accept("{"):
			err = p.list("}", true)
		default:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p *celParser) primary() error {
	switch {
	case p.accept("("):
		if err := p.expression(); err != nil {
			return err
		}
		return p.expect(")")
	case p.accept("["):
		return p.list("]", false)
	case p.accept("{"):
		return p.list("}", true)
	case p.accept("."):
		return p.name(false)
	case isCELLiteral(p.tokens[0]):
		p.tokens = p.tokens[1:]
		return nil
	}
	if err := p.name(false); err != nil {
		return err
	}
	if p.accept("(") {
		return p.list(")", false)
	}
	return nil
}

func isCELLiteral(token string) bool {
	if token == "" {
		return false
	}
	last := token[len(token)-1]
	return last == '"' || last == '\'' || token[0] >= '0' && token[0] <= '9' ||
		token[0] == '.' && len(token) > 1
}

// name parses a name. The name of a field may be a reserved word.
func (p *celParser) name(field bool) error {
	token := p.tokens[0]
	letter := token != "" && (token[0] == '_' || token[0]|0x20 >= 'a' && token[0]|0x20 <= 'z')
	if !letter || isCELLiteral(token) || celReserved[token] && (!field || token == "in") {
		return p.unexpected()
	}
	p.tokens = p.tokens[1:]
	return nil
}

// list parses expressions, or pairs of them, up to the closing token.
func (p *celParser) list(end string, pairs bool) error {
	for !p.accept(end) {
		p.accept("?")
		err := p.expression()
		if err == nil && pairs {
			if err = p.expect(":"); err == nil {
				err = p.expression()
			}
		}
		if err != nil {
			return err
		}
		if p.accept(",") {
			continue
		}
		return p.expect(end)
	}
	return nil
}
