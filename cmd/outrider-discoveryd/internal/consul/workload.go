package consul

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	networking "istio.io/api/networking/v1alpha3"
	"k8s.io/apimachinery/pkg/util/validation"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/registration"
)

// Prefixes of keys in Consul's key/value store. The key workloadKeys+NAMESPACE/NAME contains the
// WorkloadEntry of a registered workload, in the JSON form of Kubernetes.
const (
	workloadKeys = "outrider/registration/workloads/"
	serverKeys   = "outrider/registration/servers/"
)

// healthyCondition is Istio's name for the condition that contains the health.
const healthyCondition = "Healthy"

// workload is the WorkloadEntry of a registered workload, in the form that is stored as JSON.
type workload struct {
	APIVersion string                    `json:"apiVersion"`
	Kind       string                    `json:"kind"`
	Metadata   metadata                  `json:"metadata"`
	Spec       *networking.WorkloadEntry `json:"spec"`
	Status     *status                   `json:"status,omitempty"`
}

type metadata struct {
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type status struct {
	Conditions []condition `json:"conditions,omitempty"`
}

type condition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"`
	LastProbeTime      time.Time `json:"lastProbeTime"`
	LastTransitionTime time.Time `json:"lastTransitionTime"`
	Message            string    `json:"message,omitempty"`
}

// newWorkload returns the WorkloadEntry for a workload that an agent registers.
func newWorkload(of *registration.Workload, c registration.Connection) *workload {
	w := &workload{Metadata: metadata{Labels: of.Spec.Labels,
		Annotations: map[string]string{}}, Spec: of.Spec}
	for key, value := range of.Annotations {
		w.Metadata.Annotations[key] = value
	}
	w.Metadata.Annotations[registration.GroupAnnotation] = of.Group.Name
	w.Metadata.Annotations[serviceAnnotation] = serviceOf(of.Group)
	w.name(of.Key)
	w.connect(c)
	return w
}

// parseWorkload parses the WorkloadEntry in a value of the key/value store. Its kind and name come
// from the key: whoever may write only this key cannot replace another object.
func parseWorkload(pair *api.KVPair) (*workload, error) {
	namespace, name, _ := strings.Cut(strings.TrimPrefix(pair.Key, workloadKeys), "/")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil, errors.New("the key does not end in NAMESPACE/NAME of a WorkloadEntry")
	}
	w := &workload{}
	if err := json.Unmarshal(pair.Value, w); err != nil {
		return nil, err
	}
	if w.Spec == nil {
		return nil, errors.New("the WorkloadEntry has no spec")
	}
	w.name(registration.Key{Namespace: namespace, Name: name})
	return w, nil
}

func (w *workload) name(key registration.Key) {
	w.APIVersion, w.Kind = object.NetworkingGroup+"/v1", string(object.WorkloadEntry)
	w.Metadata.Namespace, w.Metadata.Name = key.Namespace, key.Name
}

func (w *workload) key() registration.Key {
	return registration.Key{Namespace: w.Metadata.Namespace, Name: w.Metadata.Name}
}

// connect updates the annotations that contain the state of the workload's connection.
func (w *workload) connect(c registration.Connection) {
	if w.Metadata.Annotations == nil {
		w.Metadata.Annotations = map[string]string{}
	}
	for key, value := range map[string]string{registration.ControllerAnnotation: c.Controller,
		registration.ConnectedAnnotation:    formatTime(c.ConnectedAt),
		registration.DisconnectedAnnotation: formatTime(c.DisconnectedAt)} {
		if value == "" {
			delete(w.Metadata.Annotations, key)
		} else {
			w.Metadata.Annotations[key] = value
		}
	}
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

// connection returns the state of the workload's connection from the annotations. A time that
// cannot be parsed is zero.
func (w *workload) connection() registration.Connection {
	at := func(annotation string) time.Time {
		t, _ := time.Parse(time.RFC3339Nano, w.Metadata.Annotations[annotation])
		return t.UTC() // equal times must be equal with ==
	}
	return registration.Connection{Controller: w.Metadata.Annotations[registration.ControllerAnnotation],
		ConnectedAt: at(registration.ConnectedAnnotation), DisconnectedAt: at(registration.DisconnectedAnnotation)}
}

// setHealth replaces the condition Healthy. LastTransitionTime changes only with the status.
func (w *workload) setHealth(h registration.Health) {
	next := condition{Type: healthyCondition, Status: "False", LastProbeTime: h.ReportedAt,
		LastTransitionTime: h.ReportedAt, Message: h.Message}
	if h.Healthy {
		next.Status = "True"
	}
	if w.Status == nil {
		w.Status = &status{}
	}
	for i, c := range w.Status.Conditions {
		if c.Type != healthyCondition {
			continue
		}
		if c.Status == next.Status {
			next.LastTransitionTime = c.LastTransitionTime
		}
		w.Status.Conditions[i] = next
		return
	}
	w.Status.Conditions = append(w.Status.Conditions, next)
}

// health returns the last reported health, nil if there is none.
func (w *workload) health() *registration.Health {
	if w.Status == nil {
		return nil
	}
	for _, c := range w.Status.Conditions {
		if c.Type == healthyCondition {
			return &registration.Health{Healthy: c.Status == "True", Message: c.Message,
				ReportedAt: c.LastProbeTime}
		}
	}
	return nil
}

// entry returns the workload as a registration.WorkloadEntry. index is the ModifyIndex of its key.
func (w *workload) entry(index uint64) *registration.WorkloadEntry {
	return &registration.WorkloadEntry{Key: w.key(), Version: fmt.Sprint(index),
		Group:          w.Metadata.Annotations[registration.GroupAnnotation],
		ServiceAccount: w.Spec.ServiceAccount, Connection: w.connection(),
		Health: w.health()}
}
