// Package lastgood persists the objects and the MeshConfig that are in force although their files
// are invalid. Without it, a restarted agent would withdraw them.
package lastgood

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/validate"
	"outrider.org/outrider/agent/resource"
)

// State contains the last good versions of objects and of MeshConfig whose files are invalid now.
type State struct {
	Objects []*object.Object
	// mesh configuration paths that were missing, so that their objects stay in force; see
	// store.Options
	MissingPaths []string
	// PolicyFolderInodes are the inodes of the directories that contained policies, by path; see
	// store.Options.
	PolicyFolderInodes map[string]uint64
	// PolicyCountsByFile has the number of policies in each file, by path; see store.Options.
	PolicyCountsByFile map[string]int
	// PolicyLocationsIncomplete reports that PolicyFolderInodes and PolicyCountsByFile may be
	// incomplete: the state file could not be read, the state was too large to be stored, or
	// PolicyLocationsIncomplete was set in an earlier State and some paths have not been found
	// since.
	PolicyLocationsIncomplete bool
	// WriterRefusedUnknownFilterFields reports that there are EnvoyFilters and that the agent that
	// wrote the State refuses unknown fields in them. Older agents accepted unknown fields.
	WriterRefusedUnknownFilterFields bool
	// MeshConfig is the text of the MeshConfig in force. It is empty if the current file, or the
	// default, is in force.
	MeshConfig []byte

	// versions that Envoy refused and that an older agent therefore reverted; nil: none
	RevertedByOldAgent *RevertedVersions
}

// IsEmpty reports whether there is nothing to persist, because everything in force is in the files.
func (s State) IsEmpty() bool {
	return !s.WriterRefusedUnknownFilterFields &&
		len(s.Objects)+len(s.MeshConfig)+len(s.PolicyFolderInodes)+len(s.PolicyCountsByFile) == 0 &&
		s.RevertedByOldAgent == nil
}

const (
	version  = 1
	maxBytes = 16 << 20 // limit of the file's size, because each start reads the file
)

// written is the JSON form of the file's content.
type written struct {
	Version  int               `json:"version"`
	Objects  []Record          `json:"objects,omitempty"`
	Away     []string          `json:"away,omitempty"`
	Folders  map[string]uint64 `json:"folders,omitempty"`
	Policies map[string]int    `json:"policies,omitempty"`
	Lost     bool              `json:"lost,omitempty"`
	// content of the MeshConfig file, which may not be UTF-8
	Mesh []byte `json:"mesh,omitempty"`

	Checked bool `json:"checked,omitempty"`

	Refused     []reverted    `json:"refused,omitempty"`
	RefusedMesh *revertedMesh `json:"refusedMesh,omitempty"`
}

// Record is the JSON form of an object.
type Record struct {
	File       string      `json:"file"`
	Line       int         `json:"line"`
	RouteLines []int       `json:"routes,omitempty"`
	Index      int         `json:"index,omitempty"`
	APIVersion string      `json:"apiVersion"`
	Kind       object.Kind `json:"kind"`
	Namespace  string      `json:"namespace"`
	// ExplicitNamespace reports whether the object's metadata has a namespace. It is nil in records
	// of older agents.
	ExplicitNamespace *bool             `json:"named,omitempty"`
	Name              string            `json:"name"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	Conditions        map[string]string `json:"conditions,omitempty"`
	Created           time.Time         `json:"created,omitzero"`
	// Spec is the spec in protobuf's JSON. A field that is unknown is an error.
	Spec json.RawMessage `json:"spec"`
}

// Read reads a file written by Write. A missing file is an empty state. It returns an error for
// each object for which validate finds an error, or one for the whole file, and a state with
// everything else. namespace is the default namespace in force.
func Read(path, namespace string, validate func(*object.Object) []object.Finding) (State, []error) {
	text, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	var in written
	if err == nil {
		err = json.Unmarshal(text, &in)
	}
	if err == nil && in.Version != version {
		err = fmt.Errorf("the file has format version %d; supported is %d", in.Version, version)
	}
	if err != nil {
		return State{PolicyLocationsIncomplete: true},
			[]error{fmt.Errorf("read the last good versions in %s: %w", path, err)}
	}
	state := State{MeshConfig: in.Mesh, WriterRefusedUnknownFilterFields: in.Checked,
		MissingPaths:       in.Away,
		PolicyFolderInodes: in.Folders,
		PolicyCountsByFile: in.Policies, PolicyLocationsIncomplete: in.Lost}
	var wrong []error
	if in.Lost {
		wrong = append(wrong,
			fmt.Errorf("%s is incomplete: an earlier agent could not store or read all last good "+
				"versions", path))
	}
	for _, r := range in.Objects {
		o, err := r.object(namespace, validate)
		if err != nil {
			wrong = append(wrong,
				fmt.Errorf("the last good version of %s %s/%s, of %s, is not valid any more: %w",
					r.Kind, r.Namespace, r.Name, resource.Position(r.File, r.Line), err))
			if r.Kind.CanRestrictAccess() {
				state.doubt(r.File)
			}
			continue
		}
		state.Objects = append(state.Objects, o)
	}
	wrong = append(wrong, in.readReverted(&state, namespace, validate)...)
	return state, wrong
}

// doubt records that the policies of a file are only partly known, because a stored policy is not
// usable. If the file is below one of MissingPaths, whose stored objects would stay in force, doubt
// moves the path to PolicyFolderInodes, so that the next store waits for its files instead.
func (s *State) doubt(file string) {
	if s.PolicyCountsByFile == nil {
		s.PolicyCountsByFile = map[string]int{}
	}
	s.PolicyCountsByFile[file] = math.MaxInt32
	s.MissingPaths = slices.DeleteFunc(s.MissingPaths, func(path string) bool {
		if file != path && !strings.HasPrefix(file, path+"/") {
			return false
		}
		if s.PolicyFolderInodes == nil {
			s.PolicyFolderInodes = map[string]uint64{}
		}
		s.PolicyFolderInodes[path] = 0
		return true
	})
}

func read(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("the file has more than %d bytes", maxBytes)
	}
	return text, err
}

// Write atomically replaces the file by one with mode 0600, because objects may contain secrets. An
// empty state removes the file. If the encoded state exceeds maxBytes, Write returns an error and
// stores only PolicyLocationsIncomplete, and PolicyFolderInodes and PolicyCountsByFile if these
// fit.
func Write(path string, state State) error {
	if state.IsEmpty() && !state.PolicyLocationsIncomplete {
		return remove(path)
	}
	objects, err := recordsOf(state.Objects)
	if err != nil {
		return err
	}
	out := written{Version: version, Mesh: state.MeshConfig,
		Checked: state.WriterRefusedUnknownFilterFields,
		Objects: objects,
		Away:    state.MissingPaths, Folders: state.PolicyFolderInodes,
		Policies: state.PolicyCountsByFile, Lost: state.PolicyLocationsIncomplete}
	if state.RevertedByOldAgent != nil {
		out.Refused, out.RefusedMesh = state.RevertedByOldAgent.objects, state.RevertedByOldAgent.mesh
	}
	text, err := json.Marshal(out)
	if err != nil {
		return fmt.Errorf("write the last good versions: %w", err)
	}
	if len(text) > maxBytes {
		rest := State{PolicyLocationsIncomplete: true}
		if len(state.Objects)+len(state.MeshConfig) > 0 {
			rest.PolicyFolderInodes, rest.PolicyCountsByFile = state.PolicyFolderInodes, state.PolicyCountsByFile
		}
		return errors.Join(
			fmt.Errorf("the last good versions have %d bytes, more than the limit of %d",
				len(text), maxBytes), Write(path, rest))
	}
	if err := renameio.WriteFile(path, text, 0o600, renameio.IgnoreUmask(),
		renameio.WithTempDir(filepath.Dir(path))); err != nil {
		return fmt.Errorf("write the last good versions into %s: %w", path, err)
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove last good versions that are not needed any more: %w", err)
	}
	return nil
}

// Objects is a list of objects whose JSON form is a list of Records.
type Objects []*object.Object

// MarshalJSON encodes the objects as a list of Records.
func (o Objects) MarshalJSON() ([]byte, error) {
	records, err := recordsOf(o)
	if err != nil {
		return nil, err
	}
	return json.Marshal(records)
}

// UnmarshalJSON decodes what MarshalJSON encodes. An invalid object is an error.
func (o *Objects) UnmarshalJSON(text []byte) error {
	var records []Record
	if err := json.Unmarshal(text, &records); err != nil {
		return err
	}
	for _, r := range records {
		one, err := r.object("", validate.Object)
		if err != nil {
			return err
		}
		*o = append(*o, one)
	}
	return nil
}

func recordsOf(objects []*object.Object) (all []Record, err error) {
	for _, o := range objects {
		r, err := recordOf(o)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

func recordOf(o *object.Object) (Record, error) {
	spec, err := protojson.Marshal(o.Spec)
	if err != nil {
		return Record{}, fmt.Errorf("write the last good version of %s: %w", o, err)
	}
	return Record{File: o.File, Line: o.Line, Index: o.Index, RouteLines: o.RouteLines,
		APIVersion: o.APIVersion, Kind: o.Kind, Namespace: o.Namespace,
		ExplicitNamespace: new(!o.NamespaceDefaulted), Name: o.Name,
		Labels: o.Labels, Annotations: o.Annotations, Conditions: o.Conditions, Created: o.Created,
		Spec: spec}, nil
}

// object returns the object of a record, or an error if the object is not valid.
func (r Record) object(namespace string,
	validate func(*object.Object) []object.Finding) (*object.Object, error) {
	spec := object.NewSpec(r.Kind)
	if spec == nil {
		return nil, errors.New("unsupported kind")
	}
	if err := protojson.Unmarshal(r.Spec, spec); err != nil {
		return nil, fmt.Errorf("decode the spec: %w", err)
	}
	// Records of older agents do not contain ExplicitNamespace. Their objects probably have no
	// namespace of their own if they are in the default one.
	defaulted := r.Namespace == namespace
	if r.ExplicitNamespace != nil {
		defaulted = !*r.ExplicitNamespace
	}
	o := &object.Object{Key: object.Key{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name},
		NamespaceDefaulted: defaulted, APIVersion: r.APIVersion, Labels: r.Labels,
		Annotations: r.Annotations, Conditions: r.Conditions, Created: r.Created, File: r.File,
		Line: r.Line, Index: r.Index, RouteLines: r.RouteLines, Spec: spec}
	for _, finding := range validate(o) {
		if finding.Severity == condition.Error && !finding.UnknownField {
			return nil, errors.New(o.NewProblem(finding).Message)
		}
	}
	return o, nil
}
