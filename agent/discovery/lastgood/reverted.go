package lastgood

import (
	"bytes"
	"fmt"
	"slices"

	"outrider.org/outrider/agent/discovery/object"
)

// Reverted has what agents before 0054 (docs/decisions) reverted because Envoy refused it. It
// counts as invalid until it changes or a reload, so that the version before stays in force as its
// last good one. It is immutable.
type Reverted struct {
	objects []reverted
	mesh    *revertedMesh
	// versions are the refused versions of objects, without PeerAuthentications: the version before
	// may accept plain text.
	versions map[*object.Object]string // message
}

// reverted is an object in the file.
type reverted struct {
	Version *Record `json:"version,omitempty"` // refused; nil: its removal was
	InForce *Record `json:"inForce,omitempty"` // the version before; nil: none
	Message string  `json:"message"`
}

// revertedMesh is a mesh configuration in the file.
type revertedMesh struct {
	Text    []byte `json:"text"`
	Message string `json:"message"`
}

// Message returns Envoy's refusal of an object, "" if the object is not reverted.
func (r *Reverted) Message(o *object.Object) string {
	if r != nil {
		for version, message := range r.versions {
			if object.Equal(version, o) {
				return message
			}
		}
	}
	return ""
}

// MeshMessage returns Envoy's refusal of a text of MeshConfig, "" if it is not reverted.
func (r *Reverted) MeshMessage(text []byte) string {
	if r == nil || r.mesh == nil || !bytes.Equal(r.mesh.Text, text) {
		return ""
	}
	return r.mesh.Message
}

// readReverted returns what the file says was reverted, nil for nothing, and adds the versions in
// force to those of the state.
func (in written) readReverted(state *State, namespace string,
	validate func(*object.Object) []object.Finding) (wrong []error) {
	if len(in.Refused) == 0 && in.RefusedMesh == nil {
		return nil
	}
	all := &Reverted{objects: in.Refused, mesh: in.RefusedMesh, versions: map[*object.Object]string{}}
	state.Reverted = all
	for _, r := range in.Refused {
		if r.Version == nil || r.Version.Kind == object.PeerAuthentication {
			continue
		}
		version, err := r.Version.Object(namespace, validate)
		if err == nil && r.InForce != nil {
			var o *object.Object
			if o, err = r.InForce.Object(namespace, validate); err == nil &&
				!slices.ContainsFunc(state.Objects, func(p *object.Object) bool { return p.Key == o.Key }) {
				state.Objects = append(state.Objects, o)
			}
		}
		if err != nil {
			wrong = append(wrong,
				fmt.Errorf("a version that Envoy refused is not valid any more: %w", err))
			continue
		}
		all.versions[version] = r.Message
	}
	return wrong
}
