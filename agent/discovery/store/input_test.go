package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// inputs is a store with sources that precede and follow the files in precedence.
type inputs struct {
	*files
}

func newInputs(t *testing.T, lastGood ...*object.Object) *inputs {
	f := newFiles(t)
	f.store = New(Options{Paths: []string{f.directory}, Namespace: "ns", Validate: validateObject,
		Sources:  []string{"kubernetes", FilesSource, "memory", "consul", "consul-2"},
		LastGood: lastGood})
	return &inputs{f}
}

// take applies an update of a source. texts has pairs of a path and its text. An empty text removes
// the path.
func (i *inputs) take(source string, all bool, texts ...string) []object.Change {
	b := SourceUpdate{Source: source, Complete: all}
	for pair := range slices.Chunk(texts, 2) {
		in := SourceInput{Path: pair[0]}
		if pair[1] != "" {
			in.Text = []byte(pair[1])
		}
		b.Inputs = append(b.Inputs, in)
	}
	return i.store.ApplyUpdates([]SourceUpdate{b})
}

// service returns an input of a registry with one service.
func service(path, host string, addresses ...string) SourceInput {
	spec := &networking.ServiceEntry{Hosts: []string{host},
		Resolution: networking.ServiceEntry_STATIC,
		Ports:      []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}}}
	for _, address := range addresses {
		spec.Endpoints = append(spec.Endpoints, &networking.WorkloadEntry{Address: address})
	}
	source, _, _ := strings.Cut(path, ":")
	return SourceInput{Path: path, Objects: []*object.Object{{
		Key:        object.Key{Kind: object.ServiceEntry, Namespace: source, Name: "service:" + host},
		APIVersion: "networking.istio.io/v1", File: path, Spec: spec}}}
}

func TestTake_TextsLikeFiles(t *testing.T) {
	i := newInputs(t)
	const a, b = "memory:ServiceEntry/ns/a", "memory:ServiceEntry/ns/b"
	bad := strings.Replace(entry("b", "b2.test"), "STATIC", "STATISCH", 1)
	i.expect("complete state", i.take("memory", true, a, entry("a", "a.test"), b, entry("b", "b.test")),
		"a: - → a.test", "b: - → b.test")
	i.expect("files do not remove inputs", i.store.Load())
	i.expect("invalid", i.take("memory", false, b, bad))
	i.expectProblems("memory:ServiceEntry/ns/b: ServiceEntry ns/b: spec.resolution: " +
		`"STATISCH" is not one of NONE, STATIC, DNS, DNS_ROUND_ROBIN, DYNAMIC_DNS`)
	i.expectHeld("of what is invalid", b+" b")
	i.expect("valid again", i.take("memory", false, b, entry("b", "b3.test")), "b: b.test → b3.test")
	i.expectProblems()
	i.expect("removed", i.take("memory", false, a, ""), "a: a.test → -")
	i.expect("of another source", i.take("kubernetes", false, b, entry("c", "c.test")))
	i.expect("of an unknown source", i.take("other", true, "other:c", entry("c", "c.test")))
	i.expect("complete state without it", i.take("memory", true), "b: b3.test → -")
}

// TestTake_MetadataOfKubernetes: fields that Kubernetes adds outside the spec cause neither a
// change nor a problem.
func TestTake_MetadataOfKubernetes(t *testing.T) {
	i := newInputs(t)
	const path = "kubernetes:ServiceEntry/ns/a"
	text := func(version int) string {
		return fmt.Sprintf(`{"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry", "metadata":
{"name": "a", "namespace": "ns", "uid": "6d8d", "resourceVersion": "%d", "generation": 2,
"creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"manager": "kubectl",
"operation": "Update", "fieldsV1": {"f:spec": {".": {}}}}], "finalizers": ["x"],
"ownerReferences": [{"kind": "X", "name": "x", "uid": "7"}], "selfLink": ""},
"status": {"observedGeneration": "%d", "unknown": {"x": [1]}}, "spec": {"hosts": ["a.test"],
"resolution": "STATIC", "endpoints": [{"address": "10.0.0.1"}], "ports":
[{"number": 80, "name": "http", "protocol": "HTTP"}]}}`, version, version)
	}
	i.expect("new", i.take("kubernetes", true, path, text(1)), "a: - → a.test")
	i.expectProblems()
	if changes := i.take("kubernetes", false, path, text(2)); len(changes) > 0 {
		t.Errorf("another resourceVersion changes %v", changes)
	}
}

func TestTake_PrecedenceOfSources(t *testing.T) {
	i := newInputs(t)
	i.write("a.yaml", entry("a", "files.test"))
	i.expect("files", i.store.Load(), "a: - → files.test")
	i.expect("a later source", i.take("memory", true, "memory:x", entry("a", "memory.test")))
	i.expectProblems("memory:x: ServiceEntry ns/a: has no effect: it is given at " +
		i.path("a.yaml") + ":1 too, and source files precedes memory; remove or rename one")
	i.expect("an earlier source", i.take("kubernetes", true, "kubernetes:x",
		strings.Replace(entry("a", "kubernetes.test"), "{name: a}",
			"{name: a, creationTimestamp: 2026-01-01T00:00:00Z}", 1)), "a: files.test → kubernetes.test")
	i.remove("a.yaml")
	i.expect("the file goes", i.store.Load())
	i.expect("the earlier source's goes", i.take("kubernetes", true), "a: kubernetes.test → memory.test")
	i.expectProblems()
}

func TestTake_ServicesOfRegistries(t *testing.T) {
	i := newInputs(t)
	take := func(source string, all bool, inputs ...SourceInput) []object.Change {
		return i.store.ApplyUpdates([]SourceUpdate{{Source: source, Inputs: inputs, Complete: all}})
	}
	i.expect("the later registry", take("consul-2", true, service("consul-2:web", "web.test", "10.0.0.2")),
		"service:web.test: - → web.test")
	i.expect("an entry of a person", i.take("memory", true, "memory:web", entry("web", "web.test")),
		"web: - → web.test")
	i.expect("the earlier registry", take("consul", true, service("consul:web", "web.test", "10.0.0.1")),
		"service:web.test: - → web.test", "service:web.test: web.test → -")
	i.expectProblems("consul-2:web: ServiceEntry consul-2/service:web.test: has no effect: its host is " +
		"given by consul:web too, and source consul precedes consul-2; remove it from one of the " +
		"registries, or change their order")
	if changes := take("consul", true, service("consul:web", "web.test", "10.0.0.1")); len(changes) > 0 {
		t.Errorf("the same service changes %v", changes)
	}
	if changes := take("consul", false, service("consul:web", "web.test", "10.0.0.9")); len(changes) != 1 {
		t.Errorf("another endpoint changes %v", changes)
	}
	i.expect("an invalid service", take("consul", false, service("consul:web", "web.test", "no address")))
	i.expectHeld("of an invalid service", "consul:web service:web.test")
	i.expect("it goes", take("consul", true), "service:web.test: - → web.test",
		"service:web.test: web.test → -")
	i.expectProblems()
}

// TestTake_LastGoodWaitsForTheSource: after a restart, the last good version of an invalid input
// comes into force when its source delivers the input again, not before.
func TestTake_LastGoodWaitsForTheSource(t *testing.T) {
	i := newInputs(t)
	i.take("memory", true, "memory:a", entry("a", "a.test"), "memory:b", entry("b", "b.test"))
	i.take("memory", false, "memory:a", "a: [", "memory:b", "b: [")
	next := newInputs(t, i.store.LastGoodObjects()...)
	next.expect("before the source", next.store.Load())
	next.expectHeld("before the source", "memory:a a", "memory:b b")
	next.expect("invalid still", next.take("memory", false, "memory:a", "a: ["), "a: - → a.test")
	next.expect("complete state", next.take("memory", true, "memory:a", "a: ["))
	next.expectHeld("with the complete state", "memory:a a")
}

func TestTake_PolicyWithoutLastGoodDenies(t *testing.T) {
	i := newInputs(t)
	const path = "kubernetes:AuthorizationPolicy/ns/allow"
	changes := i.take("kubernetes", true, path, `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: allow}
spec:
  selector: {matchLabels: {app: web}}
  rules: [{from: [{source: {principles: [a]}}]}]
`)
	if len(changes) != 1 || !isDenial(changes[0].New) || changes[0].New.Position() != path {
		t.Fatalf("got %v", changes)
	}
	i.expectProblems(path+": AuthorizationPolicy ns/allow: every request to the workloads that it "+
		"selects is denied, because no valid version of it is known; correct or remove it",
		path+`: AuthorizationPolicy ns/allow: spec.rules[0].from[0].source.principles: unknown field `+
			`"principles"; did you mean principals?`)
	if changes := i.take("kubernetes", false, path, "kind: [AuthorizationPolicy"); len(changes) != 2 {
		t.Errorf("an unreadable policy: %v", changes)
	}
	if changes := i.take("kubernetes", false, path, ""); len(changes) != 1 || changes[0].New != nil {
		t.Errorf("a removed policy: %v", changes)
	}
}

// TestTake_ValidatesAgain: a field that is unknown is checked again, because a newer Envoy may know
// it.
func TestTake_ValidatesAgain(t *testing.T) {
	i := newInputs(t)
	valid := false
	i.store.options.Validate = func(o *object.Object) []object.Finding {
		if valid {
			return nil
		}
		return []object.Finding{{Severity: "error", Message: "unknown", UnknownField: true}}
	}
	i.expect("unknown", i.take("memory", true, "memory:a", entry("a", "a.test")))
	valid = true
	i.expect("not due", i.store.Load())
	i.store.RevalidateInvalid()
	i.expect("known", i.store.Load(), "a: - → a.test")
	if diff := cmp.Diff([]byte(nil), i.store.files["memory:a"].text); diff != "" {
		t.Errorf("text of a valid input: %s", diff)
	}
}
