package systemtest

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
	"outrider.org/outrider/scripts/parts/signer"
)

// joinedIstiod is a real istiod with an API server, outside of the machines.
type joinedIstiod struct {
	t         *testing.T
	f         *joinedFleet
	cluster   *cluster.Cluster
	authority *pkitest.Authority
	folder    string // the files of the authority
	instances int
	stop      func() // kills the newest instance
}

// startIstiod starts both with the files of the mesh, and a new authority.
func (f *joinedFleet) startIstiod() {
	f.t.Helper()
	s := &joinedIstiod{t: f.t, f: f, cluster: cluster.Start(f.t), folder: f.t.TempDir(),
		authority: pkitest.NewAuthority(f.t, "old", nil)}
	signer.WriteAuthority(f.t, s.folder, s.authority, s.authority)
	s.cluster.Create("/api/v1/namespaces", "metadata: {name: vm}")
	s.cluster.Create("/api/v1/namespaces/vm/serviceaccounts", "metadata: {name: web}")
	s.cluster.Create("/api/v1/namespaces/istio-system/configmaps",
		fmt.Sprintf("metadata: {name: istio}\ndata: {mesh: %q}", joinedMeshConfig))
	s.cluster.Apply(joinedMesh)
	f.server = s
	f.route("host: web.test")
	s.start()
}

// start starts an instance, which the hosts reach at their gateways.
func (s *joinedIstiod) start() {
	s.t.Helper()
	s.instances++
	hosts := s.f.hosts
	address, kill := s.cluster.Istiod("POD_NAME="+s.instance(), "ROOT_CA_DIR="+s.folder,
		"ISTIOD_CUSTOM_HOST="+hosts[0].gateway+","+hosts[1].gateway,
		"PILOT_WORKLOAD_ENTRY_GRACE_PERIOD="+joinedGrace.String())
	ends := []func(){kill}
	s.f.middle.Do(s.t, func() {
		for _, h := range hosts {
			listener, err := net.Listen("tcp", h.gateway+":15012")
			if err != nil {
				s.t.Fatal(err)
			}
			ends = append(ends, parts.ForwardConnections(s.t, listener, address))
		}
	})
	s.stop = func() {
		for _, end := range ends {
			end()
		}
	}
}

func (s *joinedIstiod) instance() string { return fmt.Sprintf("joined-%d", s.instances) }

func (s *joinedIstiod) invite() (token, roots string) {
	return s.cluster.Token("vm", "web"), string(pkitest.PEM(s.authority.Certificate))
}

func (s *joinedIstiod) entries() (all []string, err error) {
	for _, entry := range s.cluster.Entries("vm") {
		all = append(all, string(entry))
	}
	return all, nil
}

func (s *joinedIstiod) route(object string) {
	s.t.Helper()
	s.cluster.Apply(object)
}

func (s *joinedIstiod) kill() (instance string) {
	s.t.Helper()
	s.stop()
	s.start()
	return s.instance()
}

// outages kill the API server, and have it away for longer than the grace period. Its data stay.
func (s *joinedIstiod) outages() []func() {
	return []func(){
		func() { s.restart(nil) },
		func() {
			s.restart(func(string) {
				parts.RepeatFor(joinedGrace+2*time.Second, time.Second, func() {})
			})
		},
	}
}

// restart restarts the API server, and waits until istiod sees changes again. The pauses of its
// watches grow to a minute; meanwhile it loses reports of health and refuses new streams, because
// it writes to outdated WorkloadEntries.
func (s *joinedIstiod) restart(meanwhile func(string)) {
	s.t.Helper()
	s.cluster.Restart(meanwhile)
	begun := time.Now()
	name := fmt.Sprintf("change-%d", begun.UnixNano())
	s.cluster.Apply("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\n" +
		"metadata: {name: " + name + ", namespace: default}\nspec: {address: 192.0.2.1}")
	parts.Eventually(s.t, joinedLimit, "istiod sees changes", func() bool {
		return strings.Contains(string(s.cluster.Debug("/debug/configz")), name)
	})
	s.t.Logf("istiod sees changes %v after the API server is ready",
		time.Since(begun).Round(100*time.Millisecond))
}

// rotation starts istiod again at each step, because it reads the roots of its clients only then.
func (s *joinedIstiod) rotation() (steps []func()) {
	old, next := s.authority, pkitest.NewAuthority(s.t, "new", nil)
	s.authority = next
	sign := func(with *pkitest.Authority, announced ...*pkitest.Authority) {
		steps = append(steps, func() {
			s.stop()
			signer.WriteAuthority(s.t, s.folder, with, announced...)
			s.start()
		})
	}
	sign(old, old, next)
	sign(next, old, next)
	sign(next, next)
	return steps
}

func (s *joinedIstiod) away(do func()) {
	s.t.Helper()
	s.stop()
	s.cluster.Restart(func(string) { do() })
	s.start()
}
