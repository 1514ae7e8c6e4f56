package discovery_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/typedcheck"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/typedconfig"
)

// typedFilter is an EnvoyFilter with a typed_config whose type the discovery server does not link.
const typedFilter = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: limit, namespace: shop}
spec:
  configPatches:
  - applyTo: EXTENSION_CONFIG
    patch:
      operation: ADD
      value:
        name: limit
        typed_config:
          "@type": type.googleapis.com/outrider.test.Unlinked
          FIELD: 1
`

// typed is a checker of typed_configs whose results a test sets.
type typed struct {
	runs    atomic.Int32
	fails   atomic.Bool
	checker typedconfig.Checker
}

// newTyped returns a checker that accepts only the field "good".
func newTyped() *typed {
	c := &typed{}
	c.checker.RunProcess = func(_ context.Context, configs []typedconfig.Config) (
		[][]typedconfig.Finding, error) {
		c.runs.Add(1)
		if c.fails.Load() {
			return nil, errors.New("no memory")
		}
		all := make([][]typedconfig.Finding, len(configs))
		for i, config := range configs {
			if strings.Contains(string(config.Value), "bad") {
				all[i] = []typedconfig.Finding{{Field: "bad", Severity: condition.Error,
					UnknownField: true,
					Message:      `Unlinked has no field "bad"`}}
			}
		}
		return all, nil
	}
	return c
}

// typedRig runs a server with one EnvoyFilter.
type typedRig struct {
	t       *testing.T
	file    string
	server  *discovery.Server
	changes chan []string
	*typed
}

func newTypedRig(t *testing.T, field, lastGood string, c *typed) *typedRig {
	t.Helper()
	r := &typedRig{t: t, file: filepath.Join(t.TempDir(), "limit.yaml"), typed: c,
		changes: make(chan []string)}
	r.write(field)
	r.server, _ = start(t, discovery.Options{Files: []string{filepath.Dir(r.file)}, LastGoodFile: lastGood,
		EarlierRunMayHaveServedFiles: filepath.Base(lastGood) == "served.json",
		ChangedPaths:                 r.changes, TypedConfigs: &c.checker})
	feedOf(t, r.server, "sidecar")
	return r
}

func (r *typedRig) write(field string) {
	write(r.t, r.file, strings.Replace(typedFilter, "FIELD", field, 1))
}

func (r *typedRig) change(field string) {
	r.write(field)
	r.changes <- []string{r.file}
	r.changes <- nil
}

// settle waits until the time stamp of the file is too old for another change to have the same one,
// and makes the server read the file. Later scans then skip the unchanged file.
func (r *typedRig) settle() {
	r.t.Helper()
	written := time.Now()
	eventually(r.t, "the file is older", func() (bool, string) {
		return time.Since(written) > 200*time.Millisecond, ""
	})
	if err := r.server.Rescan(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// expect waits until the server reports only the given problem ("": none), and the version of the
// EnvoyFilter with the given field is in force ("": no version).
func (r *typedRig) expect(what, problem, field string) {
	r.t.Helper()
	eventually(r.t, what, func() (bool, string) {
		var found []string
		for _, p := range r.server.Problems() {
			if p.Severity != condition.Info {
				found = append(found, string(p.Severity)+" "+p.String())
			}
		}
		has := ""
		snapshot, _ := feedOf(r.t, r.server, "sidecar").Current()
		if limit := snapshot.ByType(resource.ExtensionType)["limit"]; limit != nil {
			has = string(limit.EncodedMessage())
		}
		ok := len(found) == 0 && problem == "" || len(found) == 1 && problem != "" &&
			strings.Contains(found[0], problem)
		return ok && (field == "") == (has == "") && strings.Contains(has, field),
			strings.Join(found, "\n") + "; " + has
	})
}

func TestTypedConfigs_MisspeltFieldKeepsVersionBefore(t *testing.T) {
	r := newTypedRig(t, "good", "", newTyped())
	r.expect("at first", "", "good")
	r.change("bad")
	const wrong = "error FILE:13: EnvoyFilter shop/limit: spec.configPatches[0].patch.value." +
		`typed_config.bad: Unlinked has no field "bad"`
	r.expect("misspelt", strings.Replace(wrong, "FILE", r.file, 1), "good")
	r.change("good")
	r.expect("corrected", "", "good")
	if n := r.runs.Load(); n != 2 {
		t.Errorf("the process ran %d times for two texts", n)
	}

	if err := r.server.Configure(discovery.Settings{EnvoyVersion: "1.40.3"}); err != nil {
		t.Fatal(err)
	}
	r.change("bad")
	r.expect("misspelt again", "error ", "good")
	r.settle()
	if err := r.server.Configure(discovery.Settings{EnvoyVersion: "1.41.0"}); err != nil {
		t.Fatal(err)
	}
	r.expect("a newer Envoy may have it", "warning ", "bad")
	if err := r.server.Configure(discovery.Settings{EnvoyVersion: "1.40.3"}); err != nil {
		t.Fatal(err)
	}
	// the last valid version, which has the field bad, stays in force
	r.expect("an older Envoy has it not", "error ", "bad")
	if n := r.runs.Load(); n != 2 {
		t.Errorf("the process ran %d times for two texts", n)
	}
}

func TestTypedConfigs_EnvoyDecidesIfTheyCannotBeChecked(t *testing.T) {
	c := newTyped()
	c.fails.Store(true)
	r := newTypedRig(t, "good", "", c)
	r.expect("at first", "limit.yaml:11: EnvoyFilter shop/limit: spec.configPatches[0].patch.value."+
		"typed_config: outrider.test.Unlinked is checked by Envoy alone: no memory", "good")
	r.change("bad")
	r.expect("changed", "warning ", "bad")
	// the second run is a self-test of the checker with a valid configuration
	if n := r.runs.Load(); n != 2 {
		t.Errorf("the process ran %d times within a minute after it failed", n)
	}
}

// TestTypedConfigs_UpgradeKeepsWhatWasInForce starts with the state of an agent that did not check
// typed_configs. EnvoyFilters that it applied stay in force, because they may restrict access.
func TestTypedConfigs_UpgradeKeepsWhatWasInForce(t *testing.T) {
	state := filepath.Join(t.TempDir(), "served.json")
	write(t, state, `{"version":1}`)
	r := newTypedRig(t, "bad", state, newTyped())
	r.expect("after the upgrade", "error ", "bad")
	eventually(t, "it is persisted", func() (bool, string) {
		text, err := os.ReadFile(state)
		return err == nil && strings.Contains(string(text), `"bad"`), string(text)
	})
	r.change("worse: 1\n          bad")
	r.expect("another one", "error ", "bad")

	r = newTypedRig(t, "bad", filepath.Join(t.TempDir(), "served.json"), newTyped())
	r.expect("without a state", "error ", "bad")
	r = newTypedRig(t, "bad", filepath.Join(t.TempDir(), "new.json"), newTyped())
	r.expect("on a new host", "error ", "")
	checked := filepath.Join(t.TempDir(), "served.json")
	write(t, checked, `{"version":1,"checked":true}`)
	r = newTypedRig(t, "bad", checked, newTyped())
	r.expect("after an ordinary start", "error ", "")
}

// TestTypedConfigs_NewerEnvoyMayHaveFields misspells a field of a linked type. For a newer Envoy,
// that is not an error.
func TestTypedConfigs_NewerEnvoyMayHaveFields(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	write(t, file, "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\n"+
		"metadata: {name: a}\nspec: {configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, "+
		"value: {lb_polici: RANDOM,\n  lb_policy: NEWEST}}}]}\n")
	for _, newer := range []bool{false, true} {
		problems, err := discovery.Check([]string{file},
			discovery.CheckOptions{EnvoyIsNewerThanAPI: func() bool { return newer }})
		if err != nil {
			t.Fatal(err)
		}
		var seen []string
		for _, p := range problems {
			if p.Severity != condition.Info {
				seen = append(seen, string(p.Severity)+" "+strings.TrimPrefix(p.String(), file))
			}
		}
		const at = ": EnvoyFilter default/a: spec.configPatches[0].patch.value."
		want := []string{`error :4` + at + `lb_polici: Cluster has no field "lb_polici"; did you mean lb_policy?`,
			`error :5` + at + `lb_policy: "NEWEST" is not one of `}
		if newer {
			const fix = "; it has no effect: this version of Outrider has the API of Envoy 1.40"
			want = []string{`warning :4` + at + `lb_polici: Cluster has no field "lb_polici"` + fix,
				`warning :5` + at + `lb_policy: "NEWEST" is not one of `}
		}
		if len(seen) != 2 || seen[0] != want[0] || !strings.HasPrefix(seen[1], want[1]) {
			t.Errorf("newer: %v: %q", newer, seen)
		}
	}
}

func TestTypedConfigs_UnknownTypesAreChecked(t *testing.T) {
	found := typedcheck.Check([]typedconfig.Config{
		{Type: "outrider.test.Unlinked", Value: []byte("{}")}, {Type: "envoy.config.cluster.v3.Clusters", Value: []byte("{}")}})
	for i, want := range []string{"", "did you mean envoy.config.cluster.v3.Cluster?"} {
		if len(found[i]) != 1 || found[i][0].Severity != condition.Warning || found[i][0].Fix != want ||
			!strings.Contains(found[i][0].Message, "is checked by Envoy alone") {
			t.Errorf("%+v", found[i])
		}
	}
}
