package sockdiag

import (
	"encoding/binary"
	"slices"
	"testing"
)

func TestCGroupOf(t *testing.T) {
	attribute := func(kind uint16, value ...byte) []byte {
		made := binary.NativeEndian.AppendUint16(nil, uint16(attributeHeader+len(value)))
		made = append(binary.NativeEndian.AppendUint16(made, kind), value...)
		return append(made, make([]byte, (4-len(value)%4)%4)...)
	}
	group := attribute(attributeCGroup, binary.NativeEndian.AppendUint64(nil, 77)...)
	for name, test := range map[string]struct {
		attributes []byte
		want       uint64
	}{
		"nothing":          {nil, 0},
		"alone":            {group, 77},
		"behind another":   {slices.Concat(attribute(8, 1), group), 77},
		"another one only": {attribute(8, 1), 0},
		"cut":              {group[:9], 0},
		"too short":        {[]byte{1, 0, 21, 0, 1}, 0},
		"a wrong size":     {attribute(attributeCGroup, 7), 0},
	} {
		if got := cgroupOf(test.attributes); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}
