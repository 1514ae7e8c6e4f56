package lastgood

import (
	"bytes"
	"fmt"
	"slices"

	"outrider.org/outrider/agent/discovery/object"
)

// RevertedVersions contains object versions that an older agent (before docs/decisions/0054)
// reverted because Envoy had refused them. Such a version counts as invalid until it changes or a
// reload is requested, so that the previous version stays in force. A RevertedVersions is
// immutable.
type RevertedVersions struct {
	objects []reverted
	mesh    *revertedMesh
	// versions maps refused versions of objects to Envoy's error message. It contains no
	// PeerAuthentication: its previous version, which would stay in force, may accept plain text.
	versions map[*object.Object]string
}

// reverted is the JSON form of a reverted object.
type reverted struct {
	// refused version; nil if the removal of the object was refused
	Version *Record `json:"version,omitempty"`
	// version in force when Envoy refused Version; nil: none
	InForce *Record `json:"inForce,omitempty"`
	Message string  `json:"message"`
}

// revertedMesh is the JSON form of a MeshConfig that was replaced by an earlier one because Envoy
// refused it, with Envoy's error message.
type revertedMesh struct {
	Text    []byte `json:"text"`
	Message string `json:"message"`
}

// WhyObjectReverted returns the error with which Envoy refused an object; "" if the object was not
// reverted.
func (r *RevertedVersions) WhyObjectReverted(o *object.Object) string {
	if r != nil {
		for version, message := range r.versions {
			if object.Equal(version, o) {
				return message
			}
		}
	}
	return ""
}

// WhyMeshConfigReverted returns the error with which Envoy refused a text of MeshConfig; "" if it
// was not reverted.
func (r *RevertedVersions) WhyMeshConfigReverted(text []byte) string {
	if r == nil || r.mesh == nil || !bytes.Equal(r.mesh.Text, text) {
		return ""
	}
	return r.mesh.Message
}

// readReverted returns the reverted versions in a file, nil if there are none, and adds the
// previous versions, which are in force, to state.Objects.
func (in written) readReverted(state *State, namespace string,
	validate func(*object.Object) []object.Finding) (wrong []error) {
	if len(in.Refused) == 0 && in.RefusedMesh == nil {
		return nil
	}
	all := &RevertedVersions{objects: in.Refused, mesh: in.RefusedMesh,
		versions: map[*object.Object]string{}}
	state.RevertedByOldAgent = all
	for _, r := range in.Refused {
		if r.Version == nil || r.Version.Kind == object.PeerAuthentication {
			continue
		}
		version, err := r.Version.object(namespace, validate)
		if err == nil && r.InForce != nil {
			var o *object.Object
			if o, err = r.InForce.object(namespace, validate); err == nil &&
				!slices.ContainsFunc(state.Objects, func(p *object.Object) bool { return p.Key == o.Key }) {
				state.Objects = append(state.Objects, o)
			}
		}
		if err != nil {
			wrong = append(wrong,
				fmt.Errorf("a stored object version that an older agent reverted, or its "+
					"replacement, is no longer valid: %w", err))
			continue
		}
		all.versions[version] = r.Message
	}
	return wrong
}
