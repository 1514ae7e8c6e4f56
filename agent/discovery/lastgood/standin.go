package lastgood

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	"outrider.org/outrider/agent/resource"
)

// standIn is a StandIn in the file.
type standIn struct {
	View    string            `json:"view"`
	Refused string            `json:"refused"`
	Type    string            `json:"type"`
	Name    string            `json:"name"`
	Origins []resource.Origin `json:"origins,omitempty"`
	Value   []byte            `json:"value"` // encoded, without its Any
	Sum     []byte            `json:"sum"`   // of all that decides what is sent to whom
}

func standInOf(in StandIn) standIn {
	r := standIn{View: in.View, Refused: in.Refused, Type: in.Type, Name: in.Name, Origins: in.Origins, Value: in.Value()}
	r.Sum = r.sum()
	return r
}

func (r standIn) sum() []byte {
	hash := sha256.New()
	for _, part := range [...]string{r.View, r.Refused, r.Type, r.Name, string(r.Value)} {
		fmt.Fprintf(hash, "%d:%s", len(part), part)
	}
	return hash.Sum(nil)
}

// standIn is what a record was made of, if it is that still: a proxy would be sent anything else unseen.
func (r standIn) standIn() (StandIn, error) {
	if len(r.Sum) == 0 { // as an older agent wrote it
		return StandIn{}, errors.New("it has no checksum")
	}
	if !bytes.Equal(r.Sum, r.sum()) {
		return StandIn{}, errors.New("it is damaged")
	}
	if r.Type == resource.SecretType {
		return StandIn{}, errors.New("nothing stands in for a secret")
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByURL(r.Type)
	if err != nil {
		return StandIn{}, fmt.Errorf("its type is not known: %w", err)
	}
	message := kind.New().Interface()
	if err := proto.Unmarshal(r.Value, message); err != nil {
		return StandIn{}, fmt.Errorf("it cannot be decoded: %w", err)
	}
	if name, ok := nameOf(message); ok && name != r.Name {
		return StandIn{}, fmt.Errorf("its name is %q", name)
	}
	standIn := resource.StandIn{Resource: resource.FromEncoded(r.Type, r.Name, r.Value, r.Origins...), Refused: r.Refused}
	return StandIn{standIn, r.View}, nil
}

// nameOf is the name that a resource gives itself; ok is false if its type has none.
func nameOf(message proto.Message) (name string, ok bool) {
	switch named := message.(type) {
	case interface{ GetClusterName() string }: // endpoints
		return named.GetClusterName(), true
	case interface{ GetName() string }:
		return named.GetName(), true
	}
	return "", false
}
