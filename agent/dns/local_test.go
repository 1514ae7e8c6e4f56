package dns

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// An address that has moved to another host soon stops counting as local. The test runs in a
// network namespace of its own and needs root.
func TestLocalAddresses_ForgetAMovedAddress(t *testing.T) {
	t.Parallel()
	if !parts.RerunInOwnNetwork(t) {
		return
	}
	ip := func(arguments string) {
		t.Helper()
		if said, err := exec.Command("ip", strings.Fields(arguments)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
	}
	var local localAddresses
	address := netip.MustParseAddr("192.0.2.7")
	if local.has(address) {
		t.Error("known before it is there")
	}
	ip("address add 192.0.2.7/32 dev lo")
	parts.Eventually(t, time.Minute, "the address is known", func() bool { return local.has(address) })
	ip("address delete 192.0.2.7/32 dev lo")
	parts.Eventually(t, time.Minute, "the address is forgotten",
		func() bool { return !local.has(address) })
}
