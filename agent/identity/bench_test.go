package identity_test

import (
	"testing"
	"time"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pkitest"
)

// BenchmarkFiles_Start measures the time from the start of a Manager until the certificate is
// published.
func BenchmarkFiles_Start(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		var chain []byte
		r := newRig(b, func(r *rig, _ *identity.Options) {
			chain = r.issue(time.Hour)
			b.StartTimer()
		})
		r.awaitChain(identity.DefaultSecret, chain)
	}
}

// BenchmarkFiles_Rotation measures the time from the replacement of the second of two files until
// the certificate is published.
func BenchmarkFiles_Rotation(b *testing.B) {
	r := newRig(b, func(r *rig, _ *identity.Options) { r.issue(time.Hour) })
	var pairs [2][2][]byte
	for i := range pairs {
		pairs[i][0], pairs[i][1] = r.root.Issue(b, pkitest.LeafTemplate("web", time.Hour))
	}
	n := 0
	for b.Loop() {
		b.StopTimer()
		pair := pairs[n%len(pairs)]
		n++
		r.write("cert.pem", pair[0])
		b.StartTimer()
		r.write("key.pem", pair[1])
		r.awaitChain(identity.DefaultSecret, pair[0])
	}
}
