package validate

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"unicode"
)

const (
	longestRegex = 1024 // bytes; Istio's limit, for fear of what Envoy makes of it
	// largestRegex is how many instructions Envoy may make of one. It refuses the routes of a whole
	// port for one of more than re2.max_program_size.error_level, to which the bootstrap gives
	// Istio's 32768; half of it leaves room for what Go's engine counts in another way.
	largestRegex = 16384
	lastByte     = 0xff
)

// escape is what is read as a whole behind a backslash: a character by number, a class by name, or
// any other.
var escape = regexp.MustCompile(`(?s)\\(?:x\{([0-9A-Fa-f]+)\}|[pP](?:\{\^?(\w+)\}|(\w))|.)`)

// regex is checked with Go's engine, which takes the same language as Envoy's but for what is
// checked beside it.
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

// regexSize is about how many instructions Envoy's engine makes of an expression. Envoy matches
// bytes: to it each byte is a character, and there are none above.
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
	for _, instruction := range program.Inst { // Envoy's has one for each range of a class
		for i := 2; i < len(instruction.Rune) && instruction.Rune[i] <= lastByte; i += 2 {
			size++
		}
	}
	return size, nil
}

// knownClass tells whether RE2 knows a class of characters by that name: unlike Go it takes only
// short names of categories, and looks at upper and lower case.
func knownClass(name string) bool {
	_, script := unicode.Scripts[name]
	_, category := unicode.Categories[name]
	return name == "Any" || script || category && len(name) <= 2 && name != "Cn" && name != "LC"
}
