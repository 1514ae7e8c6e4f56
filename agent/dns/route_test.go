package dns

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/dns/resolved"
	"outrider.org/outrider/agent/rpc"
	"outrider.org/outrider/scripts/parts"
)

func TestRoute_Domains(t *testing.T) {
	var many []Name
	for i := range resolved.MaxDomains + 1 {
		many = append(many, Name{Host: fmt.Sprintf("n%d.test", i)})
	}
	for _, test := range []struct {
		names []Name
		want  []string
	}{
		{meshNames(), []string{"old.example.org", "payments.example.com", "svc.cluster.local",
			"svc.other.mesh", "wild.example"}},
		{[]Name{{Host: "*.a.test"}, {Host: "a.test"}, {Host: "b.c.a.test"}, {Host: "ba.test"}},
			[]string{"a.test", "ba.test"}},
		{[]Name{{Host: "a..test"}, {Host: ""}, {Host: "a b.test"}, {Host: "a\x01.test"},
			{Host: `a\000.test`}, {Host: strings.Repeat("a.", 125) + "test"}}, nil},
		{many[1:], slices.Sorted(func(yield func(string) bool) {
			for _, n := range many[1:] {
				yield(n.Host)
			}
		})},
		{many, []string{"."}},
	} {
		if got := routed(test.names); !slices.Equal(got, test.want) {
			t.Errorf("%d names: %q, want %q", len(test.names), got, test.want)
		}
	}
}

// The DNS proxy sends each change of the domains once to the helper process that configures
// systemd-resolved. Errors and the end of the helper raise a condition.
func TestRoute_SendsChangedDomains(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "resolved.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	r := start(t, "resolved "+socket)
	helper, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	connection := rpc.NewConn(helper)
	var got struct {
		Number uint64
		Route  resolved.DNSRoute
	}
	next := func(want ...string) {
		t.Helper()
		if err := connection.Receive(time.Now().Add(5*time.Second), &got); err != nil {
			t.Fatal(err)
		}
		if route := got.Route; route.Server.String() != r.address ||
			!slices.Equal(route.Domains, want) {
			t.Errorf("%+v, want %q", route, want)
		}
	}
	answer := func(text string) {
		t.Helper()
		if err := connection.Send(t.Context(), map[string]any{"Number": got.Number,
			"Error": text}); err != nil {
			t.Fatal(err)
		}
	}
	r.SetNames([]Name{{Host: "a.test"}})
	next("a.test")
	answer("")
	r.SetNames([]Name{{Host: "a.test"}, {Host: "b.a.test"}}) // the same domains
	r.SetNames([]Name{{Host: "b.test"}})
	next("b.test")
	answer("no resolved")
	parts.Eventually(t, time.Minute, "the error is reported", func() bool {
		return r.has(conditionRoute)
	})
}
