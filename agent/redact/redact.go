// Package redact removes credentials from JSON.
package redact

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Placeholder replaces a credential.
const Placeholder = "[redacted]"

// Redactor is a writer that removes credentials from JSON. It needs constant memory, because a
// configuration dump may have tens of megabytes. Envoy redacts fields that its API marks as
// sensitive (private keys, passwords), but not headers, node metadata and unknown messages. The
// Redactor recognises credentials by name:
//
//   - {"access_token": "x"}, {"tokens": ["x"]}, {"password": {"inline_string": "x"}}
//   - {"key": "authorization", "value": "x"} (a header; "name" too)
//   - {"name": "cookie", "string_match": {"exact": "x"}} (a header matcher)
//
// It removes all node metadata, because [node] metadata may contain credentials under any name.
//
// When Envoy explains why it refused a message, it quotes the message without field names. The
// Redactor removes such a quotation completely.
type Redactor struct {
	out   *bufio.Writer
	stack []frame

	inString bool
	escaped  bool
	isKey    bool // the current string is the name of an object's member
	hidden   bool // the current string is a credential
	text     []byte
	withheld bool   // the current string is buffered and written only if it contains no private key
	pending  []byte // the buffered string
	bare     bool   // within a number or literal that was replaced
	last     []byte // end of the current string, longer than each of marks
}

// frame is the state of an object or array that has not ended.
type frame struct {
	object bool
	value  bool   // in an object: the next token is a value
	key    string // name of the current member; an array has that of its parent
	label  string // value of the object's "key" or "name"
	hide   bool   // the values of members that holders lists are credentials
	public bool   // hide does not apply to certificates
	secret bool   // all values in this container are credentials
}

// marks are the texts after which Envoy 1.40 quotes its configuration, in JSON and in its log (see
// agent/envoy/log_redactor.go).
var marks = []string{"goo.gle/debug", "Unable to parse JSON as proto"}

// lastAtMost is the maximum size in bytes of Redactor.last, the end of a string that is compared
// with marks. When it is full, its first half is dropped; the other half is longer than each mark.
const lastAtMost = 128

// nameAtMost bounds the part of a string that is compared with names, in bytes.
const nameAtMost = 256

// holders are the names of members that contain the value itself, for example in a data source, a
// header, a string matcher or a typed value.
var holders = []string{"inline_string", "inline_bytes", "value", "raw_value", "string_value",
	"exact", "prefix", "suffix", "contains", "regex", "exact_match", "prefix_match", "suffix_match",
	"contains_match"}

// public are the names of a secret's members that are not confidential, unless a file also contains
// the private key.
var public = []string{"certificate_chain", "trusted_ca", "crl"}

// certificatesAtMost bounds the content of a member in public, in bytes; longer content is
// redacted. For comparison, the CA bundle of a system has about 300 kB in base64.
const certificatesAtMost = 1 << 20

// matchers are the members of a header matcher whose strings match the header's value.
var matchers = []string{"string_match", "safe_regex_match", "safe_regex"}

var (
	secretMember = regexp.MustCompile(
		`(^|_)(token|password|passwd|passphrase|secret|authorization|cookie|apikey|api_key|` +
			`access_key|private_key|secret_key|credential)(s|_value|_data|_bytes|_string|_base64)?$`)
	secretHeader = regexp.MustCompile(
		`(^|[-_.])(token|authorization|cookie|secret|password|api[-_]?key|access[-_]?key|` +
			`signature|session|auth|jwt|credential)s?([-_.]|$)`)
)

// New returns a Redactor that writes to w.
func New(w io.Writer) *Redactor {
	return &Redactor{out: bufio.NewWriter(w)}
}

// Flush writes the buffered bytes.
func (r *Redactor) Flush() error { return r.out.Flush() }

// Write redacts the next bytes of the JSON text. A value may be split between calls.
func (r *Redactor) Write(p []byte) (int, error) {
	for _, c := range p {
		if r.inString {
			r.stringByte(c)
			continue
		}
		if r.skips(c) {
			continue
		}
		switch c {
		case '"':
			r.begin()
		case '{', '[':
			r.push(c == '{')
		case '}', ']':
			if len(r.stack) > 0 {
				r.stack = r.stack[:len(r.stack)-1]
			}
		case ':', ',':
			if top := r.top(); top != nil && top.object {
				top.value = c == ':'
			}
		}
		_ = r.out.WriteByte(c) // the bufio.Writer stores the error for the next call
	}
	if _, err := r.out.Write(nil); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (r *Redactor) top() *frame {
	if len(r.stack) == 0 {
		return nil
	}
	return &r.stack[len(r.stack)-1]
}

// skips replaces a number or literal that is a credential by Placeholder, and reports whether c is
// part of such a value.
func (r *Redactor) skips(c byte) bool {
	top := r.top()
	if top == nil || !top.secret || strings.IndexByte("\"{}[]:, \t\r\n", c) >= 0 {
		r.bare = false
		return false
	}
	if !r.bare {
		r.bare = true
		_, _ = r.out.WriteString(`"` + Placeholder + `"`)
	}
	return true
}

// inNode reports whether the innermost object is the value of a member "node".
func (r *Redactor) inNode() bool {
	return len(r.stack) > 1 && r.stack[len(r.stack)-2].key == "node"
}

func (r *Redactor) push(object bool) {
	next := frame{object: object}
	if top := r.top(); top != nil {
		next.secret = top.secret || top.key == "metadata" && r.inNode()
		next.hide = top.hide || secretMember.MatchString(top.key) ||
			secretHeader.MatchString(top.label) && slices.Contains(matchers, top.key)
		next.public = object && slices.Contains(public, top.key)
		if !object {
			next.key, next.label = top.key, top.label
		}
	}
	r.stack = append(r.stack, next)
}

// begin is called at the start of a string and determines whether the string is a credential.
func (r *Redactor) begin() {
	r.inString, r.escaped, r.hidden, r.withheld = true, false, false, false
	r.text, r.last = r.text[:0], r.last[:0]
	top := r.top()
	r.isKey = top != nil && top.object && !top.value
	if top == nil || r.isKey {
		return
	}
	holds := slices.Contains(holders, top.key)
	r.hidden = top.secret || secretMember.MatchString(top.key) || holds &&
		(top.hide || secretHeader.MatchString(top.label))
	if r.hidden && holds && top.public && !top.secret {
		r.hidden, r.withheld, r.pending = false, true, r.pending[:0]
	}
}

func (r *Redactor) stringByte(c byte) {
	if c == '"' && !r.escaped {
		r.end()
		return
	}
	r.escaped = c == '\\' && !r.escaped
	if len(r.text) < nameAtMost {
		r.text = append(r.text, c)
	}
	switch {
	case r.hidden:
		return
	case r.withheld:
		r.pending = append(r.pending, c)
		r.hidden = len(r.pending) > certificatesAtMost
		return
	}
	_ = r.out.WriteByte(c)
	r.hidden = r.quotes(c) && !r.isKey
}

// quotes appends the next byte of a string to last. It reports whether last ends with one of marks,
// so that the rest of the string is a quotation of a refused configuration.
func (r *Redactor) quotes(c byte) bool {
	if len(r.last) == lastAtMost {
		r.last = r.last[:copy(r.last, r.last[lastAtMost/2:])]
	}
	r.last = append(r.last, c)
	for _, mark := range marks {
		if c == mark[len(mark)-1] && bytes.HasSuffix(r.last, []byte(mark)) {
			return true
		}
	}
	return false
}

func (r *Redactor) end() {
	r.inString = false
	if r.withheld && !r.hidden {
		if r.hidden = holdsKey(r.pending); !r.hidden {
			_, _ = r.out.Write(r.pending)
		}
	}
	if r.hidden {
		_, _ = r.out.WriteString(Placeholder)
	}
	_ = r.out.WriteByte('"')
	top := r.top()
	switch {
	case top == nil:
	case r.isKey:
		top.key = normalise(r.text)
	case top.object && (top.key == "key" || top.key == "name"):
		top.label = strings.ToLower(unescape(r.text))
	}
}

// holdsKey reports whether a raw JSON string contains a private key, as text or in base64.
func holdsKey(raw []byte) bool {
	const mark = "PRIVATE KEY"
	text := unescape(raw)
	decoded, err := base64.StdEncoding.DecodeString(text)
	return strings.Contains(text, mark) || err == nil && bytes.Contains(decoded, []byte(mark))
}

// normalise converts accessToken, Access-Token and ACCESS_TOKEN to access_token.
func normalise(raw []byte) string {
	name := unescape(raw)
	var b strings.Builder
	// the previous character is a lower-case letter or a digit, so an upper-case letter begins a
	// word
	lower := false
	for _, c := range name {
		switch {
		case c == '-' || c == '.' || c == ' ':
			b.WriteByte('_')
		case unicode.IsUpper(c):
			if lower {
				b.WriteByte('_')
			}
			b.WriteRune(unicode.ToLower(c))
		default:
			b.WriteRune(c)
		}
		lower = unicode.IsLower(c) || unicode.IsDigit(c)
	}
	return b.String()
}

// unescape decodes the escape sequences of a JSON string. It returns a truncated string unchanged.
func unescape(raw []byte) string {
	if slices.Contains(raw, '\\') {
		var text string
		if json.Unmarshal([]byte(`"`+string(raw)+`"`), &text) == nil {
			return text
		}
	}
	return string(raw)
}
