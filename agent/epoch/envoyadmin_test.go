package epoch

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/scripts/parts"
)

// If an epoch has an admin address of its own, State does not request values again that cannot
// change any more. On a shared address it requests all values each time.
func TestEnvoyAdminState_RequestsNoFinalValueTwice(t *testing.T) {
	own, shared := []string{"/ready", "/stats"}, []string{"/ready", "/stats", "/server_info"}
	for _, c := range []struct {
		own    bool
		number int
		// requested paths of each call; Envoy's workers start after the first call
		steps [][]string
	}{
		{true, RestartEpochNotRead, [][]string{own, own, {"/ready"}}},
		{false, 3, [][]string{shared, shared, shared}},
	} {
		address := filepath.Join(parts.ShortDir(t), "admin.sock")
		listener, err := net.Listen("unix", address)
		if err != nil {
			t.Fatal(err)
		}
		var asked []string
		workers := 0
		server := &http.Server{Handler: http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.URL.Path)
				switch r.URL.Path {
				case "/ready":
					fmt.Fprintln(w, "LIVE")
				case "/stats":
					fmt.Fprintf(w, "%s: %d\n", workersStarted, workers)
				case "/server_info":
					fmt.Fprintln(w,
						`{"state":"LIVE","uptime_current_epoch":"1s","uptime_all_epochs":"1s","command_line_options":{"restart_epoch":3}}`)
				}
			})}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })
		admin := &EnvoyAdmin{Admin: envoy.NewAdmin(address), own: c.own}
		for i, want := range c.steps {
			asked, workers = nil, min(i, 1)
			state, err := admin.State(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			wantState := ServerState{Server: "LIVE", RestartEpoch: c.number, WorkersStarted: i > 0}
			if diff := cmp.Diff(wantState, state) + cmp.Diff(want, asked); diff != "" {
				t.Errorf("own %t, request %d: %s", c.own, i, diff)
			}
		}
	}
}
