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

// joinedIstiod is the fleetServer with a real istiod and an API server, which run on this host.
type joinedIstiod struct {
	t         *testing.T
	f         *joinedFleet
	cluster   *cluster.Cluster
	authority *pkitest.Authority
	folder    string // has the files of the CA
	instances int
	stop      func() // kills the current istiod
}

// startIstiod starts an API server with the objects of joinedMesh, and istiod with a new CA.
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

// start starts another istiod, which each host reaches at port 15012 of its gateway.
func (s *joinedIstiod) start() {
	s.t.Helper()
	s.instances++
	hosts := s.f.hosts
	address, kill := s.cluster.StartIstiod("POD_NAME="+s.instance(), "ROOT_CA_DIR="+s.folder,
		"ISTIOD_CUSTOM_HOST="+hosts[0].gateway+","+hosts[1].gateway,
		"PILOT_WORKLOAD_ENTRY_GRACE_PERIOD="+joinedGrace.String())
	ends := []func(){kill}
	s.f.middle.RunOn(s.t, func() {
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
	for _, entry := range s.cluster.WorkloadEntries("vm") {
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

// outages returns functions that kill the API server and start it again, at once and after longer
// than the grace period. Its data are kept.
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

// restart kills the API server, calls meanwhile, starts the server again, and waits until istiod
// sees changes again. istiod waits up to a minute before it opens its watches again. Until then it
// loses reports of health and refuses new streams, because it writes outdated versions of
// WorkloadEntries.
func (s *joinedIstiod) restart(meanwhile func(string)) {
	s.t.Helper()
	s.cluster.RestartAPIServer(meanwhile)
	begun := time.Now()
	name := fmt.Sprintf("change-%d", begun.UnixNano())
	s.cluster.Apply("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\n" +
		"metadata: {name: " + name + ", namespace: default}\nspec: {address: 192.0.2.1}")
	parts.Eventually(s.t, joinedLimit, "istiod sees changes", func() bool {
		return strings.Contains(string(s.cluster.IstiodDebugPage("/debug/configz")), name)
	})
	s.t.Logf("istiod sees changes %v after the API server is ready",
		time.Since(begun).Round(100*time.Millisecond))
}

// rotation restarts istiod in each step, because istiod reads the roots for its clients'
// certificates only when it starts.
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
	s.cluster.RestartAPIServer(func(string) { do() })
	s.start()
}
