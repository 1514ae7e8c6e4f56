// Package quote knows by which words Envoy 1.40 tells that it quotes all of what it was given (source/common/protobuf/utility.cc):
// whoever passes on what Envoy says takes out what stands behind them, as a configuration may hold credentials.
package quote

const (
	// Message is before a message whose constraints do not hold, or that is of another type, in text format: Abseil's mark of debug
	// output, which goes on with letters and spaces that change.
	Message = "goo.gle/debug"

	// JSON is before why a text is not the JSON of a message, in parentheses; the text follows.
	JSON = "Unable to parse JSON as proto"
)

// Marks are all of them.
func Marks() []string { return []string{Message, JSON} }
