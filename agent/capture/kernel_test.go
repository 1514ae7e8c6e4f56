package capture

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var everywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

func TestInstall_OwnedTableIsWhatShowRenders(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	settings := &Settings{Inbound: Ports{All: true}, ExcludeInbound: []uint16{22},
		Outbound: everywhere, ExcludeOutboundPorts: []uint16{25, 53},
		ExcludeOutbound: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"),
			netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("255.255.255.0/24"),
			netip.MustParsePrefix("fd00::/8")},
	}
	table := buildTable(settings, Users{1001, 1002}, AddressFamilies{true, true}, nil)
	socket, err := newOwnerSocket()
	if err != nil {
		t.Fatal(err)
	}
	if err := socket.install(table); err != nil {
		t.Fatal(err)
	}
	if err := socket.install(table); err != nil {
		t.Fatalf("again: %v", err)
	}
	listed := run(t, "", "nft", "list", "ruleset")
	if !strings.Contains(listed, "flags owner") {
		t.Error("the table has no owner")
	}
	other := exec.Command("nft", "delete", "table", "inet", "outrider")
	if out, err := other.CombinedOutput(); err == nil {
		t.Errorf("deleted: %s", out)
	}
	run(t, "", "nft", "flush", "ruleset")
	counters, err := socket.counters(table)
	if err != nil {
		t.Fatal(err)
	}
	if len(counters) != len(keys(table)) {
		t.Errorf("counters %v; the rules have the keys %v", counters, keys(table))
	}
	if names, err := socket.tables(); err != nil || len(names) != 1 || names[0] != "outrider" {
		t.Errorf("tables %v, %v", names, err)
	}
	if err := socket.Close(); err != nil {
		t.Fatal(err)
	}
	if left := run(t, "", "nft", "list", "ruleset"); left != "" {
		t.Errorf("left: %s", left)
	}
	// nft must accept what String renders, and then list the same table as after install.
	plain := *table
	plain.OwnedByHelper = false
	run(t, plain.String(), "nft", "-f", "-")
	if diff := cmp.Diff(normal(listed), normal(run(t, "", "nft", "list", "ruleset"))); diff != "" {
		t.Errorf("installed (-) and rendered (+): %s", diff)
	}
}

// normal removes meaningless differences from the output of nft list.
func normal(listed string) string {
	var kept []string
	for line := range strings.Lines(listed) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " # progname")
		if line != "" && line != "flags owner" {
			kept = append(kept, strings.ReplaceAll(line, "meta l4proto tcp ", ""))
		}
	}
	return strings.Join(kept, "\n")
}

func keys(table *Table) []string {
	var all []string
	for _, c := range table.Chains {
		for _, r := range c.Rules {
			if !slices.Contains(all, r.ConfigKey) {
				all = append(all, r.ConfigKey)
			}
		}
	}
	return all
}
