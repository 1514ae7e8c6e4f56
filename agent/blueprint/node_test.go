package blueprint

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/cloud"
	"outrider.org/outrider/agent/config"
)

func TestNode_CloudAndAddresses(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"location": "west", "tagsList": [{"name": "team", "value": "shop"},
			{"name": "app", "value": "tag"}]}`))
	}))
	defer server.Close()
	maker := Builder{Cloud: &cloud.MetadataService{URL: server.URL}, Host: config.Host{
		Hostname: func() (string, error) { return "vm", nil },
		Interfaces: func() ([]config.Interface, error) {
			return []config.Interface{{Name: "eth0", Up: true, Addresses: []netip.Addr{
				netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("2001:db8::5")}}}, nil
		}}}
	c := &config.Config{Node: config.Node{Labels: map[string]string{"app": "web"}}}
	node := func() config.Node {
		t.Helper()
		node, err := maker.node(t.Context(), &config.Loaded{Config: c})
		if err != nil {
			t.Fatal(err)
		}
		return node
	}
	if n := node(); n.Locality != "" || len(n.Labels) != 1 || n.ExtraIPs != nil {
		t.Errorf("%+v", n)
	}
	c.Discovery.Addresses, c.Node.Cloud = config.Addresses{"istiod:15012"}, "azure"
	n := node()
	if n.Locality != "west" || !cmp.Equal(n.ExtraIPs, []string{"2001:db8::5"}) ||
		!cmp.Equal(n.Labels, map[string]string{"team": "shop", "app": "web"}) {
		t.Errorf("%+v", n)
	}
	c.Node.Locality = "here"
	if n := node(); n.Locality != "here" {
		t.Errorf("%+v", n)
	}
	maker.Cloud = &cloud.MetadataService{URL: "http://127.0.0.1:1"}
	if _, err := maker.node(t.Context(), &config.Loaded{Config: c}); err == nil ||
		!strings.Contains(err.Error(), "node.cloud_platform") {
		t.Errorf("error %v", err)
	}
}
