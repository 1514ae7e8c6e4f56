package validate

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"unicode"
)

const (
	longestRegex = 1024 // bytes; Istio's limit, which indirectly bounds the compiled size
	// largestRegex bounds the instructions of one expression in Envoy. Envoy refuses all routes of
	// a port for an expression of more than re2.max_program_size.error_level, which the bootstrap
	// sets to Istio's 32768. Half of it allows for the difference to Go's engine.
	largestRegex = 16384
	lastByte     = 0xff
)

// escape matches an escape sequence: a character by number, a class by name, or any other.
var escape = regexp.MustCompile(`(?s)\\(?:x\{([0-9A-Fa-f]+)\}|[pP](?:\{\^?(\w+)\}|(\w))|.)`)

// regex checks an expression with Go's engine, which accepts Envoy's syntax except for the
// additional checks here.
func (c *checker) regex(field, expression string) {
	if expression == "" {
		c.fail(field, "the regular expression is empty", "write .* to take everything")
		return
	}
	if len(expression) > longestRegex {
		c.fail(field, fmt.Sprintf("the regular expression has %d characters, more than %d",
			len(expression), longestRegex), "write a shorter one")
		return
	}
	size, err := regexSize(expression)
	switch {
	case err != nil:
		c.fail(field, fmt.Sprintf("%q is no regular expression: %v", expression, err),
			"Envoy's are RE2: no look-around, no back-references")
	case size > largestRegex:
		c.fail(field,
			fmt.Sprintf("the regular expression is a program of some %d instructions, more than %d",
				size, largestRegex),
			"write smaller repeat counts: x{100} is a hundred times x")
	}
}

// regexSize estimates the number of instructions of an expression in Envoy, which matches bytes:
// characters above 0xff do not exist there.
func regexSize(expression string) (int, error) {
	if _, err := regexp.Compile(expression); err != nil {
		return 0, err
	}
	for _, found := range escape.FindAllStringSubmatch(expression, -1) {
		if number, err := strconv.ParseUint(found[1], 16, 32); err == nil && number > lastByte {
			return 0, fmt.Errorf("%s is above %s, the last byte", found[0], `\x{ff}`)
		}
		if class := found[2] + found[3]; class != "" && !knownClass(class) {
			return 0, fmt.Errorf("%s is no class that Envoy knows", found[0])
		}
	}
	characters := make([]rune, len(expression))
	for i := range len(expression) {
		characters[i] = rune(expression[i])
	}
	parsed, err := syntax.Parse(string(characters), syntax.Perl)
	if err != nil {
		return 0, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, err
	}
	size := len(program.Inst)
	for _, instruction := range program.Inst { // Envoy has an instruction for each range of a class
		for i := 2; i < len(instruction.Rune) && instruction.Rune[i] <= lastByte; i += 2 {
			size++
		}
	}
	return size, nil
}

// knownClass reports whether RE2 knows a class of characters by that name. Unlike Go, it accepts
// only short names of categories and is case-sensitive.
func knownClass(name string) bool {
	_, script := unicode.Scripts[name]
	_, category := unicode.Categories[name]
	return name == "Any" || script || category && len(name) <= 2 && name != "Cn" && name != "LC"
}
