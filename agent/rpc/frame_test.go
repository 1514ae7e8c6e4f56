package rpc

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestFrames(t *testing.T) {
	for name, test := range map[string]struct {
		bytes string
		want  error // nil: any error
	}{
		"no length":           {"\x00\x00\x00\x00", nil},
		"too long":            {"\x00\x10\x00\x01{}", nil},
		"longer than memory":  {"\xff\xff\xff\xff{}", nil},
		"cut":                 {"\x00\x00\x00\x03{}", nil},
		"no JSON":             {"\x00\x00\x00\x02xx", nil},
		"no header":           {"\x00\x00", nil},
		"JSON without frames": {`{"protocol":2}` + "\n", ErrUnframed},
	} {
		var got any
		err := decode(strings.NewReader(test.bytes), &got)
		if err == nil || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	// This encoding must never change, because a keeper continues to run during upgrades.
	if frame, err := encode(map[string]int{"protocol": 1}); err != nil ||
		string(frame) != "\x00\x00\x00\x0e"+`{"protocol":1}` {
		t.Errorf("%q, %v", frame, err)
	}
	longest := strings.Repeat("x", MaxMessageBytes-2)
	frame, err := encode(longest)
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if err := decode(bytes.NewReader(frame), &got); err != nil || got != longest {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := encode(longest + "x"); err == nil {
		t.Error("a message beyond the limit was encoded")
	}
}

// FuzzDecode checks that decoding arbitrary bytes ends, and that a decoded message can be encoded
// and decoded again.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", "\x00\x00\x00\x02{}", "\x00\x00\x00\x00", "\xff\xff\xff\xff{}", "\x00\x00\x00\x04null",
		`{"protocol":2}`, "\x00\x00\x00\x2a{\"number\":1,\"operation\":\"start\",\"start\":{}}  ",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var message json.RawMessage
		if decode(bytes.NewReader(data), &message) != nil {
			return
		}
		frame, err := encode(message)
		if err != nil {
			return // JSON escapes made the message longer than the limit
		}
		if err := decode(bytes.NewReader(frame), &message); err != nil {
			t.Errorf("an encoded message cannot be decoded: %v", err)
		}
	})
}
