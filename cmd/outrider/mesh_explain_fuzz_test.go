package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/api"
)

// FuzzReadRequest parses arguments of "mesh explain": a target, --header, --to, two values of
// --from, and a file for --jwt. A request that the parsers accept must be valid for
// discovery.Explain.
func FuzzReadRequest(f *testing.F) {
	f.Add("a.test", "x-user: jason", "10.0.0.1", "192.0.2.1", "spiffe://td/ns/a/sa/b",
		[]byte("a.b.c\n"))
	f.Add("https://a.test:8443/x?y=1", "x=1", "", "::1", "::ffff:192.0.2.1", []byte("Bearer a.b.c"))
	f.Add("[::1]:80/", ":authority: b", "fe80::1%eth0", "fe80::1%eth0", "spiffe://", []byte{})
	f.Add("//", "=", "::", "spiffe:///", "x", []byte("\x00\r\nx: y"))
	f.Add("ftp://a:0", ":", "0", "1.2.3", "spiffe:/", make([]byte, mostToken+1))
	f.Fuzz(func(t *testing.T, target, header, to, first, second string, token []byte) {
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, token, 0o600); err != nil {
			t.Fatal(err)
		}
		var request api.MeshExplainRequest
		if readTarget(target, to, []string{header}, &request) != nil ||
			readClient([]string{first, second}, file, &request) != nil {
			return
		}
		if request.Host == "" || request.Port == 0 || request.Port > 65535 {
			t.Errorf("%q is read as host %q, port %d", target, request.Host, request.Port)
		}
		if !request.Source.IsValid() && request.ClientSPIFFEID == "" {
			t.Errorf("--from %q --from %q: no client", first, second)
		}
		if request.Source.Is4In6() || request.DestinationAddress.Is4In6() {
			t.Errorf("IPv4 addresses as IPv6: from %s to %s", request.Source, request.DestinationAddress)
		}
		if len(request.ClientSPIFFEID) == len("spiffe://") {
			t.Errorf("--from %q --from %q: an empty SPIFFE ID", first, second)
		}
		value := request.Headers[len(request.Headers)-1].Value
		if len(request.Headers) != 2 || strings.ContainsAny(value, "\r\n\x00") {
			t.Errorf("headers %q", request.Headers)
		}
	})
}
