package status

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

// busyEnvoy returns an admin interface that answers only at the end of the test. It sends the path
// of each request to asked. Like Envoy, it ignores disconnects.
func busyEnvoy(t *testing.T) (envoy *proxy, asked chan string) {
	asked, ended := make(chan string, 100), make(chan struct{})
	t.Cleanup(func() { close(ended) })
	envoy = &proxy{}
	envoy.set(roundTripper(func(r *http.Request) (*http.Response, error) {
		asked <- r.URL.Path
		select {
		case <-ended:
		case <-r.Context().Done():
		}
		return nil, io.ErrUnexpectedEOF
	}), 0, "")
	return envoy, asked
}

// abandon sends a request and closes the connection once Envoy has received the request.
func abandon(t *testing.T, uid int, address, path string, asked chan string) {
	t.Helper()
	c := slowReader(t, uid, address, path)
	select {
	case <-asked:
	case <-time.After(30 * time.Second):
		t.Fatal("Envoy was not asked")
	}
	_ = c.Close()
}

// A request whose client has disconnected occupies the slot of its user until Envoy has answered,
// so a user cannot make Envoy work on several large answers by disconnecting.
func TestDumps_AbandonedOnesKeepTheirPlace(t *testing.T) {
	envoy, asked := busyEnvoy(t)
	view := NewAdminView(AdminViewOptions{Epochs: &epochs{},
		Config: AdminViewConfig{Port: parts.FreePort(t)}, Proxy: envoy,
		TrustedUIDs: []uint32{0}, Conditions: condition.NewRegistry(), Logger: discard()})
	view.dumps.waitFor = 500 * time.Millisecond
	runPart(t, view.Run)
	<-view.Ready()
	abandon(t, 20000, view.ListenAddress(), "/config_dump", asked)
	second := slowReader(t, 20000, view.ListenAddress(), "/config_dump")
	_ = second.SetReadDeadline(time.Now().Add(30 * time.Second))
	said := make([]byte, 512)
	if n, err := second.Read(said); err != nil || !strings.Contains(string(said[:n]),
		"try again later") {
		t.Errorf("the second one gets %s, %v", said[:n], err)
	}
	if len(asked) > 0 {
		t.Error("Envoy is asked beside the request that was abandoned")
	}
}

// A scrape whose client has disconnected occupies one of the two slots of its user or host until
// Envoy has answered.
func TestScrapes_AbandonedOnesKeepTheirPlace(t *testing.T) {
	envoy, asked := busyEnvoy(t)
	server := newHTTPServer(newMerger(nil, envoy, func() string { return "" }), discard())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	runPart(t, func(ctx context.Context) error {
		context.AfterFunc(ctx, func() { _ = server.Close() })
		_ = server.Serve(newGate([]uint32{0}).listen(listener))
		return nil
	})
	address := listener.Addr().String()
	for range scrapesOfOne {
		abandon(t, 0, address, "/metrics", asked)
	}
	request, _ := http.NewRequest(http.MethodGet, "http://"+address+"/metrics", nil)
	request.Header.Set(timeoutHeader, "1")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	_ = response.Body.Close()
	if response.StatusCode != http.StatusServiceUnavailable || len(asked) > 0 {
		t.Errorf("the next scrape: %s; Envoy is asked %d times more", response.Status, len(asked))
	}
}
