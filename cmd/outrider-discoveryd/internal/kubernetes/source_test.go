package kubernetes

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
)

// testSource: the first batch contains the objects of all kinds, as text that the object store can
// parse. Later changes arrive one by one.
func testSource(t *testing.T, c *cluster.Cluster) {
	ns := namespace(c, "source")
	at := networkingPath + ns
	c.Create(at+"/serviceentries", serviceEntry("web", "web.example"))
	c.Create(at+"/virtualservices", "apiVersion: networking.istio.io/v1\nkind: VirtualService\n"+
		"metadata: {name: web, labels: {a: b}, annotations: {c: \"1\"}}\n"+
		"spec: {hosts: [web.example], http: [{route: [{destination: {host: web.example}}]}]}")
	c.Create("/apis/networking.istio.io/v1alpha3/namespaces/"+ns+"/envoyfilters",
		"apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: f}\nspec: {}")
	c.Create("/apis/security.istio.io/v1/namespaces/"+ns+"/peerauthentications",
		"apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p}\n"+
			"spec: {mtls: {mode: STRICT}}")

	s, r := startSource(t, Options{Kubeconfig: c.Kubeconfig(t, c.APIServerAddress(), "secret")})
	awaitSynced(t, s)
	want := []string{"kubernetes:EnvoyFilter/source/f", "kubernetes:PeerAuthentication/source/p",
		"kubernetes:ServiceEntry/source/web", "kubernetes:VirtualService/source/web"}
	if got := r.Paths(); !slices.Equal(got, want) || r.CompleteUpdateCount() != 1 ||
		r.UpdateCount() != 1 {
		t.Fatalf("%d batches, %d with all: %q, want %q", r.UpdateCount(), r.CompleteUpdateCount(),
			got, want)
	}
	in, _ := r.Input("kubernetes:VirtualService/source/web")
	var got struct {
		APIVersion string
		Kind       string
		Metadata   map[string]any
		Spec       map[string]any
		Status     map[string]any
	}
	if err := json.Unmarshal(in.Text, &got); err != nil {
		t.Fatal(err)
	}
	if got.APIVersion != "networking.istio.io/v1" || got.Kind != "VirtualService" ||
		got.Status != nil || got.Spec["hosts"] == nil || len(got.Metadata) != 5 {
		t.Errorf("got %s", in.Text)
	}

	c.Create(at+"/serviceentries", serviceEntry("two", "two.example"))
	r.await(t, "kubernetes:ServiceEntry/source/two", "two.example")
	c.Send(http.MethodDelete, at+"/serviceentries/two", "")
	parts.Eventually(t, limit, "the object is removed", func() bool {
		return slices.Equal(r.Paths(), want)
	})
	if status := s.Status(); status.Err != nil || status.Problem != "" || status.Inputs != 4 ||
		status.LastContact.IsZero() {
		t.Errorf("status %+v", status)
	}
	for _, o := range []string{"serviceentries/web", "virtualservices/web"} {
		c.Send(http.MethodDelete, at+"/"+o, "")
	}
	c.Send(http.MethodDelete,
		"/apis/networking.istio.io/v1alpha3/namespaces/source/envoyfilters/f", "")
	c.Send(http.MethodDelete,
		"/apis/security.istio.io/v1/namespaces/source/peerauthentications/p", "")
}

// testNamespaces: the source reads only the configured namespaces. A change of an object's status
// that has no effect on the discovery server delivers nothing.
func testNamespaces(t *testing.T, c *cluster.Cluster) {
	one, two := namespace(c, "one"), namespace(c, "two")
	c.Create(networkingPath+one+"/serviceentries", serviceEntry("web", "one.example"))
	c.Create(networkingPath+two+"/serviceentries", serviceEntry("web", "two.example"))
	s, r := startSource(t, Options{Kubeconfig: c.Kubeconfig(t, c.APIServerAddress(), "secret"),
		Namespaces: []string{one}})
	awaitSynced(t, s)
	if got := r.Paths(); !slices.Equal(got, []string{"kubernetes:ServiceEntry/one/web"}) {
		t.Errorf("got %q", got)
	}
	object := networkingPath + one + "/serviceentries/web"
	c.MergePatch(object+"/status", `{"status": {"conditions": [{"type": "X", "status": "True"}]}}`)
	c.MergePatch(object, `{"metadata": {"labels": {"last": "yes"}}}`)
	r.await(t, "kubernetes:ServiceEntry/one/web", `"last":"yes"`)
	if r.UpdateCount() != 2 {
		in, _ := r.Input("kubernetes:ServiceEntry/one/web")
		t.Errorf("%d batches, want 2: the status is a change: %s", r.UpdateCount(), in.Text)
	}
	c.Send(http.MethodDelete, object, "")
	c.Send(http.MethodDelete, networkingPath+two+"/serviceentries/web", "")
}

// conditionOf returns the condition that this program has written to a ServiceEntry, and the
// resourceVersion of the object, which changes with each write.
func conditionOf(t *testing.T, c *cluster.Cluster, path string) (verdict, string) {
	t.Helper()
	var o istioObject
	if !c.Get(path, &o) {
		t.Fatalf("%s does not exist", path)
	}
	_, own := o.splitConditions()
	return verdictOf(own), o.ResourceVersion
}

// testStatus: two servers write the same condition to the status of an object only once, and retain
// the conditions of other programs.
func testStatus(t *testing.T, c *cluster.Cluster) {
	ns := namespace(c, "status")
	path := networkingPath + ns + "/serviceentries/web"
	c.Create(networkingPath+ns+"/serviceentries", serviceEntry("web", "web.example"))
	c.MergePatch(path+"/status", `{"status": {"conditions": [{"type": "X", "status": "True"}]}}`)
	options := Options{Kubeconfig: c.Kubeconfig(t, c.APIServerAddress(), "secret"),
		WriteStatus: true}
	var servers [2]*Source
	for i := range servers {
		servers[i], _ = startSource(t, options)
		awaitSynced(t, servers[i])
	}
	problems := []object.Problem{{File: "kubernetes:ServiceEntry/status/web", Line: 1,
		Field: "spec.hosts", Severity: condition.Error, Message: "no host", Fix: "name one"},
		{File: "kubernetes:ServiceEntry/status/absent", Severity: condition.Error}}
	report := func(problems []object.Problem, want string) {
		t.Helper()
		for _, s := range servers {
			s.ReportProblems(problems)
		}
		parts.Eventually(t, limit, "the condition is "+want, func() bool {
			got, _ := conditionOf(t, c, path)
			return strings.Join([]string{got.status, got.reason, got.message}, " ") == want
		})
	}
	report(problems, "False Invalid spec.hosts: no host; name one")
	report(nil, "True Valid ")
	_, version := conditionOf(t, c, path)
	var o istioObject
	c.Get(path, &o)
	if others, _ := o.splitConditions(); len(others) != 1 || others[0].Type != "X" {
		t.Errorf("conditions of others: %+v", others)
	}
	for range 3 {
		report(nil, "True Valid ")
	}
	if _, now := conditionOf(t, c, path); now != version {
		t.Error("an equal condition was written again")
	}

	// A server of another version writes another condition. It is overwritten only after a new
	// problem.
	c.MergePatch(path+"/status", `{"status": {"conditions": [{"type": "PassedAnalysis", `+
		`"status": "False", "message": "other"}]}}`)
	haveRead := func(message string) {
		t.Helper()
		parts.Eventually(t, limit, "the servers have read the condition", func() bool {
			return !slices.ContainsFunc(servers[:], func(s *Source) bool {
				s.status.mu.Lock()
				defer s.status.mu.Unlock()
				return s.status.objects["kubernetes:ServiceEntry/status/web"].has.message != message
			})
		})
	}
	haveRead("other")
	report(nil, "False  other")
	report(problems, "False Invalid spec.hosts: no host; name one")

	// Two servers that disagree about an object do not overwrite each other's condition endlessly.
	haveRead("spec.hosts: no host; name one")
	servers[0].ReportProblems(nil)
	haveRead("")
	_, version = conditionOf(t, c, path)
	for range 3 {
		servers[0].ReportProblems(nil)
		servers[1].ReportProblems(problems)
	}
	servers[1].status.mu.Lock()
	if n := len(servers[1].status.due); n > 0 {
		t.Errorf("%d conditions are to be written", n)
	}
	servers[1].status.mu.Unlock()
	if _, now := conditionOf(t, c, path); now != version {
		t.Error("the condition was written again")
	}
	report(problems, "False Invalid spec.hosts: no host; name one")

	// Without permission to write statuses, the source reports a problem and still delivers
	// objects.
	c.Create("/apis/rbac.authorization.k8s.io/v1/clusterroles", "metadata: {name: reader}\n"+
		"rules: [{apiGroups: ['*'], resources: ['*'], verbs: [get, list, watch]}]")
	c.Create(corePath+ns+"/serviceaccounts", "metadata: {name: reader}")
	c.Create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", "metadata: {name: reader}\n"+
		"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}\n"+
		"subjects: [{kind: ServiceAccount, namespace: status, name: reader}]")
	s, r := startSource(t, Options{WriteStatus: true,
		Kubeconfig: c.Kubeconfig(t, c.APIServerAddress(), accountToken(c, ns, "reader"))})
	awaitSynced(t, s)
	s.ReportProblems(nil)
	parts.Eventually(t, limit, "the missing permission is reported", func() bool {
		return strings.Contains(s.Status().Problem, "cannot write the status of 1 objects") &&
			strings.Contains(s.Status().Problem, "forbidden")
	})
	c.MergePatch(path, `{"metadata": {"labels": {"new": "yes"}}}`)
	r.await(t, "kubernetes:ServiceEntry/status/web", `"new":"yes"`)
	c.Send(http.MethodDelete, path, "")
}

// accountToken requests a token for a service account from the API server.
func accountToken(c *cluster.Cluster, ns, account string) string {
	text := c.Create(corePath+ns+"/serviceaccounts/"+account+"/token",
		"apiVersion: authentication.k8s.io/v1\nkind: TokenRequest\nspec: {}")
	var request struct{ Status struct{ Token string } }
	_ = json.Unmarshal(text, &request)
	return request.Status.Token
}

func TestNewVerdict_BoundsMessage(t *testing.T) {
	v := newVerdict([]object.Problem{{Severity: condition.Warning,
		Message: strings.Repeat("é", maxMessage)}}, 3)
	if len(v.message) > maxMessage || !strings.HasSuffix(v.message, "é …") || v.status != "True" ||
		v.reason != "Warnings" || v.generation != 3 {
		t.Errorf("%d bytes: %+v", len(v.message), v)
	}
}
