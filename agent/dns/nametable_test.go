package dns

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
)

// encode returns the encoded NameTable that an istiod would send for names.
func encode(names []Name) []byte {
	field := func(b []byte, number protowire.Number, value string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), value)
	}
	var message []byte
	for _, n := range names {
		var info []byte
		for _, address := range n.Addresses {
			info = field(info, 1, address.String())
		}
		info = field(info, 1, "10.0.0.0/8") // istiod may send networks
		registry := "External"
		if n.ShortName != "" {
			registry = "Kubernetes"
		}
		info = field(field(field(info, 2, registry), 3, n.Host[:2]), 4, n.Namespace)
		message = field(message, 1, string(field(field(nil, 1, n.Host), 2, string(info))))
	}
	return message
}

func TestNameTable_Decodes(t *testing.T) {
	want := []Name{{Host: "db.example", Addresses: addresses("240.240.0.1", "fd00::1")},
		{Host: "re.shop.svc.cluster.local", ShortName: "re", Namespace: "shop"}}
	got, err := ParseNameTable(encode([]Name{want[1], want[0]}))
	diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
	if err != nil || diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
	if _, err := ParseNameTable([]byte("no message")); err == nil {
		t.Error("no error")
	}
}

func FuzzNameTable(f *testing.F) {
	f.Add(encode(meshNames()))
	f.Fuzz(func(_ *testing.T, message []byte) {
		names, _ := ParseNameTable(message)
		newTable(names, Node{Namespace: "shop", Domain: "shop.svc.cluster.local"}, "corp.example")
	})
}
