package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/rig"
)

// unknownFilter is an EnvoyFilter that inserts an HTTP filter of an unknown type into the listener
// with a port. Envoy refuses the listener.
const unknownFilter = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: unknown, namespace: default}
spec:
  configPatches:
  - applyTo: %s
    match: {context: SIDECAR_INBOUND, listener: {portNumber: %d%s}}
    patch: {operation: %s, value: {name: unknown, typed_config: {
        "@type": type.googleapis.com/xds.type.v3.TypedStruct,
        type_url: type.googleapis.com/outrider.test.Unknown, value: {edit: %d}}}}
`

// TestDenials_RefusedByEnvoy changes an EnvoyFilter and, at the same time, adds a policy for the
// same listener. Envoy refuses the listener because of the changed EnvoyFilter. If Envoy accepts
// the policy together with the previous EnvoyFilter, the agent applies that combination. Otherwise
// the listener remains as it was, without the policy, and the agent is not ready.
func TestDenials_RefusedByEnvoy(t *testing.T) {
	t.Parallel()
	const access, tokens, peers, filter = "mesh.d/access.yaml", "mesh.d/tokens.yaml",
		"mesh.d/peers.yaml", "mesh.d/filter.yaml"
	const managed = ", filterChain: {filter: {name: envoy.filters.network.http_connection_manager%s}}"
	const refused = "EnvoyFilter default/unknown: Envoy refused the Listener"
	folder, root := t.TempDir(), pkitest.NewAuthority(t, "root", nil)
	chain, key := root.Issue(t, pkitest.LeafTemplate("web", 24*time.Hour))
	toml := "[identity]\nprovider = \"files\"\n"
	for name, text := range map[string][]byte{"cert_file": chain, "key_file": key,
		"root_ca_file": pkitest.PEM(root.Certificate)} {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		toml += fmt.Sprintf("%s = %q\n", name, path)
	}
	d := newDenials(t, toml)
	// EnvoyFilter without effect unless an AuthorizationPolicy is in force
	onRBAC := func(edit int) string {
		return fmt.Sprintf(unknownFilter, "HTTP_FILTER", d.web,
			fmt.Sprintf(managed, ", subFilter: {name: envoy.filters.http.rbac}"), "INSERT_BEFORE", edit)
	}
	// EnvoyFilter without effect unless a RequestAuthentication is in force
	onJWT := func(edit int) string {
		return fmt.Sprintf(unknownFilter, "HTTP_FILTER", d.web,
			fmt.Sprintf(managed, ", subFilter: {name: envoy.filters.http.jwt_authn}"),
			"INSERT_BEFORE", edit)
	}
	onTLS := func(edit int) string { // EnvoyFilter without effect unless mutual TLS is required
		return fmt.Sprintf(unknownFilter, "HTTP_FILTER", d.strict, ", filterChain: {transportProtocol: "+
			"tls, filter: {name: envoy.filters.network.http_connection_manager}}", "INSERT_FIRST", edit)
	}
	stored := func() bool {
		state, _ := os.ReadFile(filepath.Join(d.Dir, "state", "mesh-refusals"))
		return strings.Contains(string(state), "outrider.test.Unknown")
	}
	d.WriteFile(filter, "")
	d.StartReady()
	for _, test := range []struct {
		name          string
		first, second string // EnvoyFilter before and after the edit
		policy        string // file of the policy that the edit puts into force
		// results of the requests (status codes or "closed") without and with the policy
		before, after string
		inForce       bool
	}{
		{"AuthorizationPolicy, harmless before", "", fmt.Sprintf(unknownFilter, "HTTP_FILTER", d.web,
			fmt.Sprintf(managed, ""), "INSERT_FIRST", 1), access, "200 200 401 200", "200 403 401 200",
			true},
		{"AuthorizationPolicy", onRBAC(1), onRBAC(2), access, "200 200 401 200", "200 403 401 200",
			false},
		{"PeerAuthentication", onTLS(1), onTLS(2), peers, "200 200 401 200",
			"200 200 401 closed", false},
		{"RequestAuthentication", onJWT(1), onJWT(2), tokens, "200 200 200 200", "200 200 401 200",
			false},
	} {
		d.WriteFile(filter, test.first)
		d.WriteFile(access, "# none\n")
		d.put(peers, "STRICT", "DISABLE")
		d.put(tokens, "", "")
		if test.policy == tokens {
			d.put(tokens, "app: web", "app: other")
		}
		rig.Eventually(t, time.Minute, test.name+": before the edit", func() bool {
			ready, _ := d.Ready()
			said := d.RunOutrider("mesh", "check")
			if stored() { // the refusal of the previous test is still stored
				return false
			}
			loaded := strings.Contains(said.Stdout+said.Stderr, filepath.Join(d.Dir, filter)+":")
			return ready && loaded == (test.first != "") && d.answers() == test.before
		})
		want := test.before
		if test.inForce {
			want = test.after
		}
		check := func(when string) {
			t.Helper()
			rig.Eventually(t, time.Minute, test.name+": "+when, func() bool {
				said := d.RunOutrider("mesh", "check")
				ready, why := d.Ready()
				names := func(text, file string) bool {
					return strings.Contains(text, filepath.Join(d.Dir, file)+":")
				}
				if !names(said.Stdout+said.Stderr, filter) || !strings.Contains(said.Stdout+said.Stderr,
					refused) || ready != test.inForce {
					return false
				}
				return ready || names(why, test.policy) && names(why, filter)
			})
			if got := d.answers(); got != want {
				t.Errorf("%s: %s: %s, want %s", test.name, when, got, want)
			}
		}
		d.WriteFile(filter, test.second)
		d.put(test.policy, "", "")
		check("running")
		if result := d.RunOutrider("reload"); result.ExitCode != 0 {
			t.Errorf("%s: reload: %+v", test.name, result)
		}
		check("after a reload")
		rig.Eventually(t, time.Minute, test.name+": the refusal is stored", stored)
		d.KillAgent()
		if got := d.answers(); got != want {
			t.Errorf("%s: without an agent: %s, want %s", test.name, got, want)
		}
		d.Start()
		check("the next agent")
		d.WriteFile(filter, "")
		rig.Eventually(t, time.Minute, test.name+": corrected", func() bool {
			ready, _ := d.Ready()
			return ready && d.answers() == test.after
		})
	}
}
