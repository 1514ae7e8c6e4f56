package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/redact"
	"outrider.org/outrider/scripts/parts"
)

const secretBootstrap = `, "node": {"id": "x", "cluster": "y", "metadata": {"UPSTREAM_PASSWORD": "hunter2-metadata"}},
 "static_resources": {"secrets": [{"name": "roots", "validation_context": {"trusted_ca": {"inline_string": "public-roots"}}}],
  "clusters": [{"name": "one", "connect_timeout": "1s"}], "listeners": [{
  "name": "l", "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}, "filter_chains": [{"filters": [{
   "name": "hcm", "typed_config": {
    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    "stat_prefix": "s", "http_filters": [{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
    "route_config": {"virtual_hosts": [{"name": "v", "domains": ["*"],
     "request_headers_to_add": [{"header": {"key": "lightstep-access-token", "value": "hunter2-header"}}],
     "routes": [{"match": {"prefix": "/", "headers": [{"name": "authorization", "string_match": {"exact": "hunter2-match"}}]}, "route": {"cluster": "one"}}]}]}}}]}]}]}`

func TestViewOfARealEnvoy(t *testing.T) {
	socket, stop := startEnvoy(t, secretBootstrap)
	envoy := &proxy{}
	envoy.set(unixAdmin(t, socket), 4, "")
	view, _ := startView(t, AdminViewConfig{Port: parts.FreePort(t)}, envoy)
	url := "http://" + view.ListenAddress()

	for _, path := range readable {
		code, body, header := ask(t, "GET", url+path)
		if code != 200 && path != "/contention" && path != "/stats/recentlookups" ||
			header.Get(epochHeader) != "4" {
			t.Errorf("GET %s: %d from epoch %s: %.200s", path, code, header.Get(epochHeader), body)
		}
	}
	_, dump, _ := ask(t, "GET", url+"/config_dump", "Accept-Encoding", "gzip")
	if !json.Valid([]byte(dump)) || strings.Contains(dump, "hunter2") || strings.Count(dump,
		redact.Placeholder) < 3 {
		t.Errorf("not redacted, or not JSON:\n%s", dump)
	}
	if !strings.Contains(dump, "public-roots") {
		t.Errorf("certificates are redacted:\n%s", dump)
	}
	answer, epoch, err := view.Get(t.Context(), "/config_dump", "include_eds")
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil || epoch != 4 || !json.Valid(content) || strings.Contains(string(content),
		"hunter2") || !strings.Contains(string(content), redact.Placeholder) {
		t.Errorf("Get: %v, epoch %d, %s", err, epoch, content)
	}
	if _, masked, _ := ask(t, "GET", url+"/config_dump?resource=static_clusters"); strings.Contains(
		masked, "bootstrap") || !strings.Contains(masked, `"one"`) {
		t.Errorf("the query was lost: %s", masked)
	}
	for _, request := range []string{"POST /quitquitquit", "GET /quitquitquit", "POST /stats",
		"POST /logging?level=debug", "GET /logging",
		"GET /stats/../quitquitquit", "GET //quitquitquit", "GET /stats/", "GET /heap_dump",
		"POST /drain_listeners", "PUT /clusters"} {
		method, path, _ := strings.Cut(request, " ")
		if code, body, _ := ask(t, method, url+path); code != 403 || !strings.Contains(body,
			"admin_access") {
			t.Errorf("%s: %d %s", request, code, body)
		}
	}
	if err := view.Configure(AdminViewConfig{Port: view.port, Full: true}); err != nil {
		t.Fatal(err)
	}
	for _, foreign := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site",
		"same-site"}, {"Origin", "http://evil.example.com"}, {"Origin", "null"}} {
		if code, body, _ := ask(t, "POST", url+"/logging?http=trace", foreign...); code != 403 ||
			!strings.Contains(body, "another site's page") {
			t.Errorf("full: POST /logging with %v: %d %s", foreign, code, body)
		}
	}
	for _, own := range [][]string{{"Sec-Fetch-Site", "same-origin", "Origin", url},
		{"Origin", url}} {
		if code, body, _ := ask(t, "POST", url+"/logging?http=debug", own...); code != 200 {
			t.Errorf("full: POST /logging with %v: %d %s", own, code, body)
		}
	}
	if code, body, _ := ask(t, "POST", url+"/logging?http=debug"); code != 200 ||
		!strings.Contains(body, "http: debug") {
		t.Errorf("full: POST /logging: %d %s", code, body)
	}
	if _, dump, _ := ask(t, "GET", url+"/config_dump"); !strings.Contains(dump, "hunter2-header") {
		t.Error("full: the dump is redacted")
	}
	stop()
	begun := time.Now()
	if code, body, _ := ask(t, "GET", url+"/stats"); code != 503 || !strings.Contains(body,
		"epoch 4") {
		t.Errorf("dead: %d %s", code, body)
	}
	if took := time.Since(begun); took > handOverTime+10*time.Second {
		t.Errorf("the answer took %v", took)
	}
}

func TestViewSurvivesAChangeOfEpoch(t *testing.T) {
	envoy := &proxy{}
	envoy.set(nil, 0, "no epoch is live: epoch 0 is starting")
	view, _ := startView(t, AdminViewConfig{Port: parts.FreePort(t)}, envoy)
	url := "http://" + view.ListenAddress()
	if code, body, _ := ask(t, "GET", url+"/stats"); code != 503 ||
		body != "no epoch is live: epoch 0 is starting\n" {
		t.Errorf("%d %s", code, body)
	}
	// The view retries while epoch 0 has closed its admin interface and epoch 1 is not live yet.
	tries := 0
	envoy.set(roundTripper(func(*http.Request) (*http.Response, error) {
		if tries++; tries == 3 {
			envoy.set(answering(map[string]string{"/stats": "of epoch 1"}), 1, "")
		}
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}), 0, "")
	code, body, header := ask(t, "GET", url+"/stats")
	if code != 200 || body != "of epoch 1" || header.Get(epochHeader) != "1" {
		t.Errorf("%d %s", code, body)
	}
	envoy.set(roundTripper(
		func(*http.Request) (*http.Response, error) { return nil, errors.New("cut") }), 2, "")
	if code, body, _ := ask(t, "GET", url+"/stats"); code != 503 || !strings.Contains(body,
		"epoch 2 does not answer: cut") {
		t.Errorf("%d %s", code, body)
	}
}

func TestViewMovesToAnotherPort(t *testing.T) {
	envoy := &proxy{}
	envoy.set(answering(map[string]string{"/stats": "x"}), 0, "")
	first, second := parts.FreePort(t), parts.FreePort(t)
	view, board := startView(t, AdminViewConfig{Port: first}, envoy)
	at := func(port int) int {
		response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/stats", port))
		if err != nil {
			return 0
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	if at(first) != 200 {
		t.Fatal("not on the first port")
	}
	if err := view.Configure(AdminViewConfig{Port: second}); err != nil {
		t.Fatal(err)
	}
	if at(first) != 0 || at(second) != 200 {
		t.Errorf("first port %d, second port %d", at(first), at(second))
	}
	reserved, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer reserved.Close()
	busy := reserved.Addr().(*net.TCPAddr).Port
	if err := view.Configure(AdminViewConfig{Port: busy}); err == nil || at(second) != 200 {
		t.Errorf("a port that is taken: %v; second port %d", err, at(second))
	}
	if err := view.Configure(AdminViewConfig{}); err != nil || at(second) != 0 ||
		view.ListenAddress() != "" {
		t.Errorf("off: %v; second port %d", err, at(second))
	}
	if err := view.Configure(AdminViewConfig{Port: first}); err != nil || at(first) != 200 {
		t.Errorf("on again: %v", err)
	}
	if all := board.Conditions(); len(all) != 0 {
		t.Errorf("conditions: %+v", all)
	}
}

func TestViewWaitsForAPortThatIsTaken(t *testing.T) {
	reserved, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t)))
	if err != nil {
		t.Fatal(err)
	}
	envoy := &proxy{}
	envoy.set(answering(map[string]string{"/stats": "x"}), 0, "")
	view, board := startView(t, AdminViewConfig{Port: reserved.Addr().(*net.TCPAddr).Port}, envoy)
	if all := board.Conditions(); len(all) != 1 || all[0].Code != conditionView {
		t.Errorf("conditions: %+v", all)
	}
	_ = reserved.Close()
	eventually(t, "the view listens", func() bool { return view.ListenAddress() != "" })
	if all := board.Conditions(); len(all) != 0 {
		t.Errorf("conditions: %+v", all)
	}
}
