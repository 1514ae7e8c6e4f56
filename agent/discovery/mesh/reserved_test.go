package mesh_test

import (
	"testing"

	"outrider.org/outrider/agent/discovery/mesh"
)

func TestTakenBy(t *testing.T) {
	m := mesh.Default()
	m.ReservedAddresses = []mesh.ReservedAddress{{Address: "::", Port: 15090, Owner: "metrics",
		IsEnvoys: true},
		{Address: "127.0.0.1", Port: 15000, Owner: "admin"}, {Port: 15020, Owner: "status"}}
	for _, test := range []struct {
		address  string
		port     uint32
		captured bool
		want     string
	}{
		{"127.0.0.1", 15090, false, "metrics"},
		{"0.0.0.0", 15090, false, "metrics"},
		{"0.0.0.0", 15090, true, "metrics"},
		{"10.0.0.1", 15090, true, ""},
		{"127.0.0.1", 15000, false, "admin"},
		{"0.0.0.0", 15000, false, "admin"},
		{"127.0.0.2", 15000, false, ""},
		{"0.0.0.0", 15000, true, ""},
		{"fd00::1", 15020, false, "status"},
		{"0.0.0.0", 15020, true, ""},
		{"127.0.0.1", 80, false, ""},
	} {
		if got := m.ReservedBy(test.address, test.port, test.captured); got != test.want {
			t.Errorf("%+v: taken by %q", test, got)
		}
	}
}
