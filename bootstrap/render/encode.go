package render

import (
	"bytes"
	"encoding/json"
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"
)

// encodeJSON returns the bootstrap as indented JSON with the names of the protobuf fields. Equal
// bootstraps give equal bytes.
func encodeJSON(built *bootstrapv3.Bootstrap) ([]byte, error) {
	encoded, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(built)
	if err != nil {
		return nil, fmt.Errorf("render bootstrap: %w", err)
	}
	return indent(encoded)
}

// indent returns indented JSON with a final newline. protojson varies its white space on purpose.
func indent(encoded []byte) ([]byte, error) {
	var indented bytes.Buffer
	if err := json.Indent(&indented, encoded, "", "  "); err != nil {
		return nil, fmt.Errorf("render bootstrap: %w", err)
	}
	indented.WriteByte('\n')
	return indented.Bytes(), nil
}
