package web

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/xds"
)

var (
	noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	past = noon.Add(-time.Hour)
)

func stream(id uint64, node string, types ...xds.TypeStatus) xds.StreamStatus {
	return xds.StreamStatus{Types: types, Stream: xds.Stream{ID: id, OpenedAt: noon,
		Node: &corev3.Node{Id: node}, Peer: xds.Peer{Address: "192.0.2.7:4711"}}}
}

func accepted(at time.Time) xds.TypeStatus {
	return xds.TypeStatus{VersionSent: "1", VersionAccepted: "1", AcceptedAt: at}
}

func TestHosts(t *testing.T) {
	const node = "sidecar~10.0.0.9~vm.shop~shop.svc.cluster.local"
	certified := stream(1, node, accepted(noon))
	certified.Peer.Certificate = &x509.Certificate{NotAfter: noon.Add(time.Hour)}
	certified.Peer.Identity = "spiffe://cluster.local/ns/shop/sa/web"
	certified.Peer.UserAgent = "outriderd/1.2.3 grpc-go/1.79.3"
	istio := stream(1, node, accepted(noon))
	istio.Peer.UserAgent = "grpc-go/1.79.3"
	istio.Node.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: "1.40.0"}
	refuses := stream(2, node, accepted(past), xds.TypeStatus{VersionSent: "2",
		Refused: []xds.RefusedResource{{Name: "web", Error: "no such filter"}}})
	plain := ConnectedHost{Node: node, Name: "vm.shop", Kind: "sidecar", Address: "192.0.2.7", Since: noon,
		State: synced, LastAckAt: noon, Streams: 1}
	for name, c := range map[string]struct {
		streams []xds.StreamStatus
		want    func(h *ConnectedHost)
	}{
		"certificate and agent": {[]xds.StreamStatus{certified}, func(h *ConnectedHost) {
			h.Identity, h.Agent = "spiffe://cluster.local/ns/shop/sa/web", "outriderd/1.2.3"
			h.CertificateEnds = noon.Add(time.Hour)
		}},
		"version of Envoy": {[]xds.StreamStatus{istio}, func(h *ConnectedHost) { h.Envoy = "1.40.0" }},
		"nothing accepted yet": {[]xds.StreamStatus{stream(1, node, xds.TypeStatus{})},
			func(h *ConnectedHost) { h.State, h.LastAckAt = pending, time.Time{} }},
		"a response is not accepted yet": {[]xds.StreamStatus{stream(1, node, accepted(noon),
			xds.TypeStatus{VersionSent: "2", VersionAccepted: "1"})},
			func(h *ConnectedHost) { h.State = pending }},
		"a resource is to be sent": {[]xds.StreamStatus{stream(1, node, accepted(noon),
			xds.TypeStatus{VersionSent: "2", VersionAccepted: "2", Pending: 1})},
			func(h *ConnectedHost) { h.State = pending }},
		"two streams, one refuses": {[]xds.StreamStatus{refuses, stream(1, node, accepted(noon))},
			func(h *ConnectedHost) {
				h.State, h.Reason, h.Streams = refused, "web: no such filter", 2
			}},
	} {
		want := plain
		c.want(&want)
		got := hosts(c.streams)
		for i := range got {
			got[i].newest = 0
		}
		if diff := cmp.Diff([]ConnectedHost{want}, got, cmp.AllowUnexported(ConnectedHost{})); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
	if got := hosts([]xds.StreamStatus{stream(1, node)}); len(got) != 0 {
		t.Errorf("a stream that requests nothing: %+v", got)
	}
}

// serviceEntry returns a ServiceEntry that selects workloads whose label app is its own name.
func serviceEntry(name string) object.Change {
	return object.Change{New: &object.Object{File: "/etc/mesh/" + name + ".yaml", Line: 3,
		Key: object.Key{Kind: object.ServiceEntry, Namespace: "shop", Name: name},
		Spec: &networking.ServiceEntry{Hosts: []string{name + ".test"},
			Resolution:       networking.ServiceEntry_STATIC,
			WorkloadSelector: &networking.WorkloadSelector{Labels: map[string]string{"app": name}},
			Ports:            []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}}}}}
}

func workload(app, name, healthy string) object.Change {
	return object.Change{New: &object.Object{
		Key:         object.Key{Kind: object.WorkloadEntry, Namespace: "shop", Name: name},
		Annotations: map[string]string{"proxy.istio.io/health-checks-enabled": "true"},
		Conditions:  map[string]string{"Healthy": healthy},
		Spec: &networking.WorkloadEntry{Address: "10.0.0.1", Ports: map[string]uint32{"http": 8080},
			Labels: map[string]string{"app": app}}}}
}

// serving returns a Server, with given streams and objects, and the handler of its pages.
func serving(t *testing.T, streams []xds.StreamStatus, changes ...object.Change) (*Server,
	http.Handler) {
	t.Helper()
	world := model.NewMesh("cluster.local", mesh.Default())
	world.Apply(changes)
	s := New(Options{Version: "1.2.3", Ready: func() error { return nil },
		Streams:   func(context.Context) []xds.StreamStatus { return streams },
		Inventory: world.Inventory,
		Problems: func() []discovery.Problem {
			return []discovery.Problem{{File: "/etc/mesh/a.yaml", Line: 7, Severity: condition.Error,
				Message: "<script>document.title='pwned'</script>"}}
		},
		Conditions: func() []condition.Condition {
			return []condition.Condition{{Code: discovery.ConditionMeshProblems},
				{Code: "ca-expires",
					Severity: condition.Warning, Sentence: "the authority ends soon"}}
		},
		Sources: func() []Source {
			return []Source{{Name: "consul", Error: "connection refused"}}
		}})
	routes := http.NewServeMux()
	s.Register(routes, func(h http.Handler) http.Handler { return h })
	return s, routes
}

func get(t *testing.T, pages http.Handler, path string, code int) string {
	t.Helper()
	w := httptest.NewRecorder()
	pages.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if w.Code != code {
		t.Errorf("%s: %d %s", path, w.Code, w.Body)
	}
	for name, want := range map[string]string{"X-Content-Type-Options": "nosniff",
		"Cross-Origin-Resource-Policy": "same-origin", "X-Frame-Options": "DENY",
		"Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; " +
			"base-uri 'none'; frame-ancestors 'none'"} {
		if got := w.Header().Get(name); code == http.StatusOK && got != want {
			t.Errorf("%s: %s is %q", path, name, got)
		}
	}
	return w.Body.String()
}

func TestPages_ShowServicesWithHealth(t *testing.T) {
	_, pages := serving(t, nil, serviceEntry("web"), workload("web", "good", "True"),
		workload("web", "bad", "False"), workload("other", "worse", "False"))
	var got answer
	if err := json.Unmarshal([]byte(get(t, pages, "/services.json", http.StatusOK)), &got); err != nil {
		t.Fatal(err)
	}
	want := []Service{{Host: "web.test", Namespace: "shop", Ports: []string{"80 http"},
		Object: "ServiceEntry shop/web", Source: "/etc/mesh/web.yaml:3", Healthy: 1, Unhealthy: 1,
		Endpoints: []Endpoint{{Address: "10.0.0.1 8080", Object: "WorkloadEntry shop/bad"},
			{Address: "10.0.0.1 8080", Healthy: true}}}}
	if diff := cmp.Diff(want, got.Services.Rows); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.Counts.Unhealthy != 2 || got.Counts.Endpoints != 1 || got.Hosts != nil {
		t.Errorf("%+v", got)
	}
	for _, text := range []string{"<td>web.test</td>", "1 healthy, ", "1 unhealthy",
		"unhealthy WorkloadEntry shop/bad", "/etc/mesh/web.yaml:3"} {
		if page := get(t, pages, "/services?q=WEB", http.StatusOK); !strings.Contains(page, text) {
			t.Errorf("the page has not %q: %s", text, page)
		}
	}
}

// Pages show text of clients and of configuration files as text, never as markup.
func TestPages_EscapeWhatOthersWrite(t *testing.T) {
	const script = `"><script>document.title='pwned'</script><img src=x onerror=alert(1)>`
	hostile := stream(1, "sidecar~10.0.0.9~"+script+"~x", xds.TypeStatus{
		Refused: []xds.RefusedResource{{Name: script, Error: script}}})
	hostile.Peer.UserAgent, hostile.Peer.Identity = script, script
	hostile.Node.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: script}
	_, pages := serving(t, []xds.StreamStatus{hostile})
	for _, path := range []string{"/", "/hosts", "/problems", "/hosts?q=" + url.QueryEscape(script),
		"/services?q=" + url.QueryEscape(script)} {
		page := get(t, pages, path, http.StatusOK)
		if strings.Contains(page, "<script") || strings.Contains(page, "<img") {
			t.Errorf("%s: markup on the page: %s", path, page)
		}
	}
	if page := get(t, pages, "/", http.StatusOK); !strings.Contains(page,
		"&lt;script&gt;document.title") {
		t.Errorf("the name is not on the page: %s", page)
	}
}

// With many hosts and services, each page stays small, and the state is read at most once a second.
func TestPages_AreBounded(t *testing.T) {
	var streams []xds.StreamStatus
	for i := range 10_000 {
		one := stream(uint64(i), fmt.Sprintf("sidecar~10.0.0.9~vm-%05d.shop~%s", i,
			strings.Repeat("x", 4000)), accepted(noon))
		one.Peer.UserAgent = fmt.Sprint("program/", i)
		streams = append(streams, one)
	}
	var changes []object.Change
	for i := range 4096 {
		changes = append(changes, serviceEntry(fmt.Sprintf("web-%04d", i)))
	}
	for i := range 1000 {
		changes = append(changes, workload("web-0000", fmt.Sprint(i), "False"))
	}
	s, pages := serving(t, streams, changes...)
	reads := 0
	s.options.Streams = func(context.Context) []xds.StreamStatus { reads++; return streams }
	started := time.Now()
	for path, text := range map[string]string{"/": "10000 of 10000", "/hosts?page=2": "page 2 of 100",
		"/hosts?page=100": "vm-09999", "/hosts?page=101": "page 100 of 100", "/hosts?page=-1": "page 1",
		"/hosts?q=vm-0123": "10 of 10000", "/services?page=41": "web-4095",
		"/services": "and 950 more"} {
		page := get(t, pages, path, http.StatusOK)
		if !strings.Contains(page, text) || len(page) > 200_000 {
			t.Errorf("%s: %d bytes, want %q", path, len(page), text)
		}
	}
	if took := time.Since(started); reads > 1+int(took/time.Second) {
		t.Errorf("the state was read %d times in %v", reads, took)
	}
	if got := versions(s.last.hosts); len(got) != mostVersions ||
		got[versionPair{"other", "other"}] != 10_000-mostVersions+1 {
		t.Errorf("%d versions, %d others", len(got), got[versionPair{"other", "other"}])
	}
	get(t, pages, "/hosts?q="+strings.Repeat("x", mostQuery+1), http.StatusBadRequest)
}

// A page shows why the server is not ready, conditions, problems, and errors of sources.
func TestPages_SayWhatIsWrong(t *testing.T) {
	s, pages := serving(t, nil)
	s.options.Ready = func() error { return errors.New("waiting for source files") }
	page := get(t, pages, "/", http.StatusOK)
	for _, text := range []string{"not ready: waiting for source files", "no contact",
		"connection refused", "ca-expires: the authority ends soon", "/etc/mesh/a.yaml:7: &lt;script"} {
		if !strings.Contains(page, text) {
			t.Errorf("the page has not %q: %s", text, page)
		}
	}
	if strings.Contains(page, discovery.ConditionMeshProblems) {
		t.Errorf("problems are a condition as well: %s", page)
	}
}

// If hosts do not report in time, pages state that hosts are missing. Metrics omit the number of
// hosts, because a lower number would look like an outage.
func TestPages_SayThatHostsAreMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, pages := serving(t, nil)
		busy := true
		s.options.Streams = func(ctx context.Context) []xds.StreamStatus {
			if busy {
				<-ctx.Done()
			}
			return []xds.StreamStatus{stream(1, "sidecar~10.0.0.1~web.shop~x", accepted(past))}
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(s)
		look := func() (missing, counted bool) {
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			return strings.Contains(get(t, pages, "/", http.StatusOK), "not all of them"),
				slices.ContainsFunc(families, func(f *dto.MetricFamily) bool {
					return f.GetName() == "outrider_discoveryd_hosts"
				})
		}
		started := time.Now()
		if missing, counted := look(); !missing || counted {
			t.Errorf("some are missing: page says so %v, metrics count the others %v", missing, counted)
		}
		if took := time.Since(started); took >= 10*time.Second {
			t.Errorf("a scrape took %v: Prometheus does not wait for so long", took)
		}
		busy = false
		time.Sleep(snapshotShare * snapshotTime)
		if missing, counted := look(); missing || !counted {
			t.Errorf("all have reported: page misses some %v, metrics count them %v", missing, counted)
		}
	})
}
