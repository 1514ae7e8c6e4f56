package validate

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"unicode"
)

const (
	// Istio's limit for a regular expression in bytes, which also limits its compiled size
	longestRegex = 1024
	// largestRegex bounds the number of instructions of one expression in Envoy. Envoy refuses all
	// routes of a port if an expression has more than re2.max_program_size.error_level, which the
	// bootstrap sets to Istio's 32768. Half of that leaves room for the difference to Go's engine.
	largestRegex = 16384
	lastByte     = 0xff
)

// escape matches an escape sequence: a character by its number, a class by its name, or any other.
var escape = regexp.MustCompile(`(?s)\\(?:x\{([0-9A-Fa-f]+)\}|[pP](?:\{\^?(\w+)\}|(\w))|.)`)

// regex checks a regular expression with Go's engine. Its syntax is Envoy's, apart from differences
// that regexSize detects.
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

// regexSize estimates the number of instructions of a regular expression in Envoy. Envoy matches
// bytes, so there are no characters above 0xff.
func regexSize(expression string) (int, error) {
	if _, err := regexp.Compile(expression); err != nil {
		return 0, err
	}
	for _, found := range escape.FindAllStringSubmatch(expression, -1) {
		if number, err := strconv.ParseUint(found[1], 16, 32); err == nil && number > lastByte {
			return 0, fmt.Errorf("%s is greater than %s, the largest byte: Envoy matches bytes, "+
				"not characters", found[0], `\x{ff}`)
		}
		if class := found[2] + found[3]; class != "" && !knownClass(class) {
			return 0, fmt.Errorf("%s is not a character class that Envoy supports", found[0])
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
	// Envoy has one instruction for each range of a character class
	for _, instruction := range program.Inst {
		for i := 2; i < len(instruction.Rune) && instruction.Rune[i] <= lastByte; i += 2 {
			size++
		}
	}
	return size, nil
}

// knownClass reports whether RE2 knows a character class by its name. Unlike Go, RE2 is
// case-sensitive and accepts only short names of categories.
func knownClass(name string) bool {
	_, script := unicode.Scripts[name]
	_, category := unicode.Categories[name]
	return name == "Any" || script || category && len(name) <= 2 && name != "Cn" && name != "LC"
}
