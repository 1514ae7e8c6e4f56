package discovery_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/scripts/parts"
)

// TestMutation_RemovedFieldChangesAnAnswer removes fields from the cases that have them. The
// responses must change, otherwise the case does not test the field. OUTRIDER_FIELDS is the number
// of fields to try, or a key; "" means 4. They are chosen at random; OUTRIDER_SEED repeats a
// choice.
func TestMutation_RemovedFieldChangesAnAnswer(t *testing.T) {
	// go test caches a result for the values of the variables that this process reads, but chosen
	// reads them in the subprocess that inNetwork starts
	_, _ = os.Getenv("OUTRIDER_FIELDS"), os.Getenv("OUTRIDER_SEED")
	if !inNetwork(t) {
		return
	}
	redirect(t)
	serveNames(t)
	api, s := readAPI(), newSuite(t)
	s.onMachine(t)
	s.resolved(t)
	having := map[string][]*conformanceCase{}
	for _, c := range s.cases(t, "*") {
		keys := map[string]bool{}
		api.collect(t, c.mesh, c.meshConfig, keys)
		for key := range keys {
			having[key] = append(having[key], c)
		}
	}
	unshown := readUnshown(t, api)
	maps.DeleteFunc(having, func(key string, _ []*conformanceCase) bool {
		_, known := slices.BinarySearch(api.keys, key)
		return !known || unshown[key] != "" || api.wordless[key]
	})
	whole := map[*conformanceCase]bool{} // cases that pass in this test without a removal
	for _, key := range chosen(t, slices.Sorted(maps.Keys(having))) {
		t.Run(key, func(t *testing.T) {
			var names []string
			for _, c := range having[key] {
				if !whole[c] {
					t.Run(c.name+" whole", func(t *testing.T) {
						whole[c] = !api.isMissed(t, "", c,
							s)
					})
				}
				if !whole[c] {
					t.Fatalf("with all that %s has its requests are not answered as expected",
						c.name)
				}
				missed := false
				t.Run(c.name, func(t *testing.T) { missed = api.isMissed(t, key, c, s) })
				if missed {
					return
				}
				names = append(names, c.name)
			}
			t.Errorf("%s: without it all requests of %s are answered as with it", key,
				strings.Join(names, ", "))
		})
	}
}

// chosen returns the keys of the fields to try.
func chosen(t *testing.T, keys []string) []string {
	t.Helper()
	text := os.Getenv("OUTRIDER_FIELDS")
	if slices.Contains(keys, text) {
		return []string{text}
	}
	count := 4
	if text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil || count < 1 {
			t.Fatalf("OUTRIDER_FIELDS=%s: a number, or a field that a case has", text)
		}
	}
	if count >= len(keys) {
		return keys
	}
	seed := randomSeed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	t.Logf("OUTRIDER_FIELDS=%d OUTRIDER_SEED=%d: %s", count, seed, strings.Join(keys[:count], " "))
	return keys[:count]
}

// isMissed reports whether the responses of a case change without a field; with the key "" nothing
// is removed.
func (a *istioAPI) isMissed(t *testing.T, key string, c *conformanceCase, s *suite) bool {
	t.Helper()
	directory := t.TempDir()
	file := filepath.Join(directory, c.name+".yaml")
	options := discovery.Options{Files: []string{directory}, Namespace: "shop",
		SeparateViewsByAddress: true}
	objects, stripped := a.without(t, key, c.mesh)
	write(t, file, objects)
	_, also := a.without(t, key, c.later)
	stripped += also
	if c.meshConfig != "" {
		left, also := a.withoutInMesh(t, key, c.meshConfig)
		stripped += also
		options.Settings.MeshConfigFile = filepath.Join(t.TempDir(), "mesh")
		write(t, options.Settings.MeshConfigFile, left)
	}
	if stripped == 0 && key != "" {
		t.Fatalf("%s has %s, but nothing was taken out", c.name, key)
	}
	for _, b := range s.backends {
		b.asked.Clear()
	}
	server, changes := start(t, options)
	e := startEnvoy(t, c.node, server)
	// before Envoy runs, requests fail with the field and without it
	eventually(t, "Envoy runs", func() (bool, string) {
		workers := e.Stat("listener_manager.workers_started")
		return workers == 1, fmt.Sprintf("workers %d", workers)
	})
	// a case without a field is expected to fail, so the test does not wait long for the right
	// response
	limit := 3 * time.Second
	if key == "" {
		limit = 30 * time.Second
	}
	parts.Poll(limit, func() bool {
		return e.Stat("listener_manager.total_listeners_warming") == 0
	})
	for _, x := range c.exchanges {
		if x.later {
			objects, _ := a.without(t, key, c.later)
			write(t, file, objects)
			changes <- []string{file}
		}
		if len(x.run(c.port)) > 0 || x.lacks(e, s.backends, limit) {
			return true
		}
	}
	return false
}

// quotedNumber matches 64-bit numbers that protobuf's JSON quotes, and that an API server accepts
// only without quotes.
var quotedNumber = regexp.MustCompile(`("(?:minimumRingSize|tableSize)":\s*)"(\d+)"`)

// without removes a field from objects, and returns how many were removed.
func (a *istioAPI) without(t *testing.T, key, objects string) (string, int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, file, objects)
	stripped := 0
	var text strings.Builder
	for _, change := range store.New(store.Options{Paths: []string{file},
		Namespace: "shop"}).Load() {
		o := change.New
		stripped += a.strip(string(o.Kind), o.Spec.ProtoReflect(), key)
		spec, err := protojson.Marshal(o.Spec)
		if err != nil {
			t.Fatal(err)
		}
		spec = quotedNumber.ReplaceAll(spec, []byte("$1$2"))
		metadata := map[string]any{"name": o.Name, "namespace": o.Namespace, "labels": o.Labels,
			"annotations": o.Annotations}
		if !o.Created.IsZero() {
			metadata["creationTimestamp"] = o.Created
		}
		var conditions []map[string]string
		for name, value := range o.Conditions {
			conditions = append(conditions, map[string]string{"type": name, "status": value})
		}
		object, err := json.Marshal(map[string]any{"apiVersion": o.APIVersion, "kind": o.Kind,
			"metadata": metadata,
			"spec":     json.RawMessage(spec), "status": map[string]any{"conditions": conditions}})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "---\n%s\n", object)
	}
	return text.String(), stripped
}

// withoutInMesh removes a field or an enum value from MeshConfig and all messages in it. It returns
// the rest as JSON, and how many occurrences were removed.
func (a *istioAPI) withoutInMesh(t *testing.T, key, text string) (string, int) {
	t.Helper()
	var m meshapi.MeshConfig
	store.DecodeMessage("mesh", []byte(text), &m, nothing)
	stripped := a.strip("MeshConfig", m.ProtoReflect(), key)
	left, err := protojson.Marshal(&m)
	if err != nil {
		t.Fatal(err)
	}
	return string(left), stripped
}

// strip removes a field, or an enum value, from a message and all messages in it. It returns how
// many were removed.
func (a *istioAPI) strip(kind string, m protoreflect.Message, key string) (count int) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		path := a.paths[kind][m.Descriptor().FullName()] + "." + field.JSONName()
		enum, message := valueOf(field).Enum(), valueOf(field).Message()
		is := func(v protoreflect.Value) bool {
			return path == key || enum != nil &&
				path+"="+string(enum.Values().ByNumber(v.Enum()).Name()) == key
		}
		switch {
		case path == key, !field.IsList() && !field.IsMap() && is(value):
			m.Clear(field)
			count++
		case message == nil || !isIstios(message):
		case field.IsList():
			for i := range value.List().Len() {
				count += a.strip(kind, value.List().Get(i).Message(), key)
			}
		case field.IsMap():
			value.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				count += a.strip(kind, v.Message(), key)
				return true
			})
		default:
			count += a.strip(kind, value.Message(), key)
		}
		return true
	})
	return count
}
