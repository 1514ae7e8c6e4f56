package kubernetes

import (
	"encoding/json"
	goruntime "runtime"
	"slices"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"outrider.org/outrider/agent/discovery/object"
)

// istioObject is an object of one of Istio's kinds, with its spec as JSON.
type istioObject struct {
	metav1.TypeMeta
	metav1.ObjectMeta `json:"metadata"`

	Spec   json.RawMessage `json:"spec,omitempty"`
	Status json.RawMessage `json:"status,omitempty"`

	encoded []byte // set by encode; nil: encode was not called, or has failed
}

// DeepCopyObject implements runtime.Object.
func (o *istioObject) DeepCopyObject() runtime.Object {
	return &istioObject{TypeMeta: o.TypeMeta, ObjectMeta: *o.ObjectMeta.DeepCopy(),
		Spec: slices.Clone(o.Spec), Status: slices.Clone(o.Status)}
}

type istioList struct {
	metav1.TypeMeta
	metav1.ListMeta `json:"metadata"`

	Items []istioObject `json:"items"`
}

// UnmarshalJSON parses the objects on all CPUs, because a list may have thousands of them.
func (l *istioList) UnmarshalJSON(text []byte) error {
	var raw struct {
		metav1.TypeMeta
		metav1.ListMeta `json:"metadata"`

		Items []json.RawMessage `json:"items"`
	}
	if err := utiljson.Unmarshal(text, &raw); err != nil {
		return err
	}
	l.TypeMeta, l.ListMeta, l.Items = raw.TypeMeta, raw.ListMeta, nil
	if raw.Items != nil {
		l.Items = make([]istioObject, len(raw.Items))
	}
	return inParallel(len(raw.Items), func(i int) error {
		return utiljson.Unmarshal(raw.Items[i], &l.Items[i])
	})
}

// inParallel calls do for 0 to n-1 on all CPUs, and returns the error of one call that failed.
func inParallel(n int, do func(i int) error) error {
	var group errgroup.Group
	workers := min(goruntime.GOMAXPROCS(0), n)
	for first := range workers {
		group.Go(func() error {
			for i := first; i < n; i += workers {
				if err := do(i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// DeepCopyObject implements runtime.Object.
func (l *istioList) DeepCopyObject() runtime.Object {
	copied := &istioList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		copied.Items = append(copied.Items, *l.Items[i].DeepCopyObject().(*istioObject))
	}
	return copied
}

// newScheme returns a Scheme with the types of all objects that the package reads or writes.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, gv := range versions() {
		for _, kind := range object.Kinds(gv.Group) {
			scheme.AddKnownTypeWithName(gv.WithKind(kind), &istioObject{})
			scheme.AddKnownTypeWithName(gv.WithKind(kind+"List"), &istioList{})
		}
		metav1.AddToGroupVersion(scheme, gv)
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	builder := runtime.NewSchemeBuilder(corev1.AddToScheme, discoveryv1.AddToScheme,
		coordinationv1.AddToScheme)
	return scheme, builder.AddToScheme(scheme)
}

// encode calls text, and stores the result in encoded. It first sets the API version and the kind,
// which the API server omits from the objects of a list.
func (o *istioObject) encode(gv schema.GroupVersion, kind string) {
	o.APIVersion, o.Kind = gv.String(), kind
	o.encoded, _ = o.text()
}

// text returns the object as JSON, without the fields that have no effect on the discovery server,
// such as resourceVersion and most of the status. So a change of these fields changes no text.
func (o *istioObject) text() ([]byte, error) {
	type metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
		Created     metav1.Time       `json:"creationTimestamp"`
	}
	delete(o.Annotations, corev1.LastAppliedConfigAnnotation)
	document := struct {
		APIVersion string          `json:"apiVersion"`
		Kind       string          `json:"kind"`
		Metadata   metadata        `json:"metadata"`
		Spec       json.RawMessage `json:"spec,omitempty"`
		Status     any             `json:"status,omitempty"`
	}{APIVersion: o.APIVersion, Kind: o.Kind, Spec: o.Spec,
		Metadata: metadata{Name: o.Name, Namespace: o.Namespace, Labels: o.Labels,
			Annotations: o.Annotations, Created: o.CreationTimestamp}}
	// The status of a WorkloadEntry has an effect: it contains the health.
	if object.Kind(o.Kind) == object.WorkloadEntry {
		if all, _ := o.splitConditions(); len(all) > 0 {
			document.Status = map[string]any{"conditions": all}
		}
	}
	return json.Marshal(document)
}

// istioCondition is a condition in an object's status.
type istioCondition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	Reason             string `json:"reason,omitempty"`
	Message            string `json:"message,omitempty"`
	LastProbeTime      string `json:"lastProbeTime,omitempty"`
	LastTransitionTime string `json:"lastTransitionTime,omitempty"`
	// a number, or a string with a number
	ObservedGeneration json.RawMessage `json:"observedGeneration,omitempty"`
}

// splitConditions returns the conditions of other programs, and the condition that this program
// writes.
func (o *istioObject) splitConditions() (others []istioCondition, own istioCondition) {
	for _, c := range o.conditions() {
		if c.Type == conditionType {
			own = c
		} else {
			others = append(others, c)
		}
	}
	return others, own
}

// conditions returns all conditions in the object's status.
func (o *istioObject) conditions() []istioCondition {
	var status struct{ Conditions []istioCondition }
	if len(o.Status) == 0 || json.Unmarshal(o.Status, &status) != nil {
		return nil
	}
	return status.Conditions
}
