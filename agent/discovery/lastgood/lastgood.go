// Package lastgood persists the mesh configuration that is in force although its files are invalid
// now. Without it, a restarted agent would see only the invalid files and withdraw what it served
// before.
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

// State contains the versions in force that the files no longer contain in valid form.
type State struct {
	Objects []*object.Object
	Away    []string // paths of Objects whose files were missing, see store.Options
	// Folders are the inodes of the directories that had policies, see store.Options.
	Folders map[string]uint64
	// Policies are the numbers of policies by file, see store.Options.
	Policies map[string]int
	// Lost reports whether the file exists and could not be read, or its state was too large, or this
	// was so before and not all paths were found since.
	Lost bool
	// Checked reports whether there are EnvoyFilters, and whether those with fields that Envoy's
	// API does not have are refused. Older agents applied them.
	Checked bool
	// Mesh is the text of the MeshConfig in force; empty: the current file, or the default, is in
	// force.
	Mesh []byte

	Reverted *Reverted // reverted versions of an older agent; nil: none
}

// Empty reports whether everything in force is as in the files, so that nothing must be persisted.
func (s State) Empty() bool {
	return !s.Checked && len(s.Objects)+len(s.Mesh)+len(s.Folders)+len(s.Policies) == 0 &&
		s.Reverted == nil
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
	Mesh     []byte            `json:"mesh,omitempty"` // bytes of the file, in any encoding

	Checked bool `json:"checked,omitempty"`

	Refused     []reverted    `json:"refused,omitempty"`
	RefusedMesh *revertedMesh `json:"refusedMesh,omitempty"`
}

// Record is the JSON form of an object.
type Record struct {
	File       string      `json:"file"`
	Line       int         `json:"line"`
	Routes     []int       `json:"routes,omitempty"`
	Index      int         `json:"index,omitempty"`
	APIVersion string      `json:"apiVersion"`
	Kind       object.Kind `json:"kind"`
	Namespace  string      `json:"namespace"`
	// Named reports whether the object names its namespace; nil: an older agent wrote the record.
	Named       *bool             `json:"named,omitempty"`
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Conditions  map[string]string `json:"conditions,omitempty"`
	Created     time.Time         `json:"created,omitzero"`
	// Spec is the spec in protobuf's JSON. A field that is unknown is an error.
	Spec json.RawMessage `json:"spec"`
}

// Read reads a file written by Write. A missing file is an empty state. The errors say what cannot
// be used: the file, or objects for which validate returns errors. The state contains everything
// else. namespace is the default namespace in force.
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
		err = fmt.Errorf("it is of version %d, and %d is what is read", in.Version, version)
	}
	if err != nil {
		return State{Lost: true},
			[]error{fmt.Errorf("read the last good versions in %s: %w", path, err)}
	}
	state := State{Mesh: in.Mesh, Checked: in.Checked, Away: in.Away, Folders: in.Folders,
		Policies: in.Policies, Lost: in.Lost}
	var wrong []error
	if in.Lost {
		wrong = append(wrong,
			fmt.Errorf("the last good versions in %s were too large or lost before", path))
	}
	for _, r := range in.Objects {
		o, err := r.Object(namespace, validate)
		if err != nil {
			wrong = append(wrong,
				fmt.Errorf("the last good version of %s %s/%s, of %s, is not valid any more: %w",
					r.Kind, r.Namespace, r.Name, resource.Position(r.File, r.Line), err))
			if r.Kind.Restricts() {
				state.doubt(r.File)
			}
			continue
		}
		state.Objects = append(state.Objects, o)
	}
	wrong = append(wrong, in.readReverted(&state, namespace, validate)...)
	return state, wrong
}

// doubt records that not all policies of a file are known, because one is unusable. It removes from
// Away the path that contains the file.
func (s *State) doubt(file string) {
	if s.Policies == nil {
		s.Policies = map[string]int{}
	}
	s.Policies[file] = math.MaxInt32
	s.Away = slices.DeleteFunc(s.Away, func(path string) bool {
		if file != path && !strings.HasPrefix(file, path+"/") {
			return false
		}
		if s.Folders == nil {
			s.Folders = map[string]uint64{}
		}
		s.Folders[path] = 0
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
		err = fmt.Errorf("it has more than %d bytes", maxBytes)
	}
	return text, err
}

// Write atomically replaces a file by one with a state. If the state is empty, it removes the file.
// The file has mode 0600, because objects may contain secrets. Of a state of more than maxBytes it
// writes only Lost, and Folders and Policies if they are small enough, and returns an error.
func Write(path string, state State) error {
	if state.Empty() && !state.Lost {
		return remove(path)
	}
	objects, err := recordsOf(state.Objects)
	if err != nil {
		return err
	}
	out := written{Version: version, Mesh: state.Mesh, Checked: state.Checked, Objects: objects,
		Away: state.Away, Folders: state.Folders, Policies: state.Policies, Lost: state.Lost}
	if state.Reverted != nil {
		out.Refused, out.RefusedMesh = state.Reverted.objects, state.Reverted.mesh
	}
	text, err := json.Marshal(out)
	if err != nil {
		return fmt.Errorf("write the last good versions: %w", err)
	}
	if len(text) > maxBytes {
		rest := State{Lost: true}
		if len(state.Objects)+len(state.Mesh) > 0 {
			rest.Folders, rest.Policies = state.Folders, state.Policies
		}
		return errors.Join(
			fmt.Errorf("the last good versions have %d bytes, more than the %d that are kept",
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
		one, err := r.Object("", validate.Object)
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
	return Record{File: o.File, Line: o.Line, Index: o.Index, Routes: o.Routes,
		APIVersion: o.APIVersion, Kind: o.Kind, Namespace: o.Namespace,
		Named: new(!o.Defaulted), Name: o.Name,
		Labels: o.Labels, Annotations: o.Annotations, Conditions: o.Conditions, Created: o.Created,
		Spec: spec}, nil
}

// Object returns the object of a record, or an error if the object is not valid.
func (r Record) Object(namespace string,
	validate func(*object.Object) []object.Finding) (*object.Object, error) {
	spec := object.NewSpec(r.Kind)
	if spec == nil {
		return nil, errors.New("its kind is not carried out")
	}
	if err := protojson.Unmarshal(r.Spec, spec); err != nil {
		return nil, fmt.Errorf("its spec cannot be read: %w", err)
	}
	defaulted := r.Namespace == namespace // a guess for records that older agents wrote
	if r.Named != nil {
		defaulted = !*r.Named
	}
	o := &object.Object{Key: object.Key{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name},
		Defaulted: defaulted, APIVersion: r.APIVersion, Labels: r.Labels,
		Annotations: r.Annotations, Conditions: r.Conditions, Created: r.Created, File: r.File,
		Line: r.Line, Index: r.Index, Routes: r.Routes, Spec: spec}
	for _, finding := range validate(o) {
		if finding.Severity == condition.Error && !finding.Unknown {
			return nil, errors.New(o.Problem(finding).Message)
		}
	}
	return o, nil
}
