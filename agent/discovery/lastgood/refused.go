package lastgood

import (
	"fmt"

	"outrider.org/outrider/agent/discovery/object"
)

// Refused is a version of an object that Envoy refused. Agents before 0054 (docs/decisions)
// reverted objects; what they wrote stays in force until it changes or a reload tries it again.
type Refused struct {
	Version *object.Object // nil: Envoy refused a resource that the object's removal changed
	InForce *object.Object // the previous version, which is in force instead; nil: none
	Message string         // the resource that Envoy refused, and its error
}

// RefusedMesh is a mesh configuration that Envoy refused.
type RefusedMesh struct {
	Text    []byte `json:"text"` // of the file
	Message string `json:"message"`
}

// Newest returns the refused version, or the version in force if Envoy refused the removal.
func (r Refused) Newest() *object.Object {
	if r.Version != nil {
		return r.Version
	}
	return r.InForce
}

// In returns r with the default namespace of its objects replaced.
func (r Refused) In(namespace string) Refused {
	if r.Version != nil {
		r.Version = r.Version.In(namespace)
	}
	if r.InForce != nil {
		r.InForce = r.InForce.In(namespace)
	}
	return r
}

// refused is the encoding of a Refused in the file.
type refused struct {
	Version *Record `json:"version,omitempty"`
	InForce *Record `json:"inForce,omitempty"`
	Message string  `json:"message"`
}

func refusedOf(r Refused) (refused, error) {
	out := refused{Message: r.Message}
	for o, into := range map[*object.Object]**Record{r.Version: &out.Version,
		r.InForce: &out.InForce} {
		if o == nil {
			continue
		}
		made, err := recordOf(o)
		if err != nil {
			return refused{}, err
		}
		*into = &made
	}
	return out, nil
}

// refused returns the decoded Refused, or an error if one of the versions is not valid any more.
func (r refused) refused(namespace string, validate func(*object.Object) []object.Finding) (
	Refused, error) {
	out := Refused{Message: r.Message}
	for from, into := range map[*Record]**object.Object{r.Version: &out.Version,
		r.InForce: &out.InForce} {
		if from == nil {
			continue
		}
		o, err := from.Object(namespace, validate)
		if err != nil {
			return Refused{}, fmt.Errorf("%s %s/%s: %w", from.Kind, from.Namespace, from.Name, err)
		}
		*into = o
	}
	if out.Newest() == nil {
		return Refused{}, fmt.Errorf("a refused object has no version")
	}
	return out, nil
}
