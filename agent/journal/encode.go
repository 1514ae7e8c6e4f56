package journal

import (
	"encoding/binary"
	"strconv"
	"strings"
)

// appendField appends a field in the journal's native protocol: NAME=value and a newline. For a
// value with newlines it appends NAME, a newline, the value's length as 64-bit little endian, the
// value and a newline (https://systemd.io/JOURNAL_NATIVE_PROTOCOL).
func appendField(to []byte, name, value string) []byte {
	to = append(to, name...)
	if strings.IndexByte(value, '\n') < 0 {
		to = append(to, '=')
	} else {
		to = append(to, '\n')
		to = binary.LittleEndian.AppendUint64(to, uint64(len(value)))
	}
	to = append(to, value...)
	return append(to, '\n')
}

func appendNumber(to []byte, name string, value int64) []byte {
	to = append(append(to, name...), '=')
	return append(strconv.AppendInt(to, value, 10), '\n')
}

// appendPair appends " key=value" for readers, with the value quoted if necessary.
func appendPair(to []byte, key, value string) []byte {
	to = append(append(append(to, ' '), key...), '=')
	plain := value != "" && !strings.ContainsFunc(value,
		func(r rune) bool { return r <= ' ' || r == '"' || r == '=' || r == '\u007f' })
	if plain {
		return append(to, value...)
	}
	return strconv.AppendQuote(to, value)
}
