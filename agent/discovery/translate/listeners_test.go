package translate_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	meshapi "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// golden compares texts with the files of the same names in a txtar archive.
func golden(t *testing.T, path string, got []txtar.File) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, txtar.Format(&txtar.Archive{Files: got}), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Files, got); diff != "" {
		t.Errorf("-want +got (go test -update rewrites it):\n%s", diff)
	}
}

// text returns a resource as a file of a golden case.
func text(t *testing.T, name string, r *resource.Resource, err error) txtar.File {
	t.Helper()
	if err != nil {
		return txtar.File{Name: name, Data: []byte("# error: " + err.Error() + "\n")}
	}
	return txtar.File{Name: name, Data: []byte(meshtest.ResourceTitle(r) +
		meshtest.YAML(t, meshtest.Message(t, r), nil))}
}

var (
	plainServer = &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE,
		ServerCertificate: "/etc/s.pem", PrivateKey: "/etc/k.pem"}
	tproxy = model.Node{Type: model.Sidecar, Namespace: meshtest.Namespace,
		Interception: model.Tproxy, Identity: true}
	redirected = model.Node{Type: model.Sidecar, Namespace: meshtest.Namespace,
		Interception: model.Redirect, IPv6: true}
)

func TestInbound(t *testing.T) {
	mesh := mesh.Default()
	mesh.TrustDomain, mesh.TrustDomainAliases = "td.test", []string{"old.test"}
	mesh.OtherTrustDomains = []string{"other.test"}
	limits := &networking.ConnectionPoolSettings{
		Tcp: &networking.ConnectionPoolSettings_TCPSettings{MaxConnections: 7}}
	all := []struct {
		name string
		in   translate.InboundListener
	}{
		{"http", translate.InboundListener{Port: 80, Name: "http", Protocol: model.HTTP,
			Bind: "10.0.0.1", Endpoint: "127.0.0.1:8080", ConnectionPool: limits}},
		{"tcp to a socket", translate.InboundListener{Port: 81, Name: "tcp", Protocol: model.TCP,
			Bind: "10.0.0.1", Endpoint: "unix:///run/app.sock"}},
		{"any protocol", translate.InboundListener{Port: 82, Name: "any",
			Protocol: model.AutoProtocol,
			Bind:     "10.0.0.1"}},
		{"TLS of its own", translate.InboundListener{Port: 83, Name: "https", Protocol: model.TLS,
			Bind: "10.0.0.1", TLS: plainServer, MutualTLSMode: model.Strict, HasMeshIdentity: true}},
		{"strict http", translate.InboundListener{Port: 84, Name: "http", Protocol: model.HTTP,
			Bind: "10.0.0.1", MutualTLSMode: model.Strict, HasMeshIdentity: true}},
		{"strict, any protocol", translate.InboundListener{Port: 85, Protocol: model.AutoProtocol,
			Bind: "10.0.0.1", MutualTLSMode: model.Strict, HasMeshIdentity: true}},
		{"strict without identity", translate.InboundListener{Port: 86, Protocol: model.HTTP,
			Bind: "10.0.0.1", MutualTLSMode: model.Strict}},
		{"permissive http", translate.InboundListener{Port: 87, Name: "http", Protocol: model.HTTP,
			Bind: "10.0.0.1", MutualTLSMode: model.Permissive, HasMeshIdentity: true}},
		{"permissive tcp", translate.InboundListener{Port: 88, Protocol: model.TCP,
			Bind: "10.0.0.1", MutualTLSMode: model.Permissive, HasMeshIdentity: true}},
		{"unset, any protocol", translate.InboundListener{Port: 89, Protocol: model.AutoProtocol,
			Bind: "10.0.0.1", HasMeshIdentity: true}},
		{"permissive without identity", translate.InboundListener{Port: 90, Protocol: model.HTTP,
			Bind: "10.0.0.1", MutualTLSMode: model.Permissive}},
		{"disabled", translate.InboundListener{Port: 91, Protocol: model.HTTP,
			Bind: "10.0.0.1", MutualTLSMode: model.Disable, HasMeshIdentity: true}},
		{"endpoint without port", translate.InboundListener{Port: 92, Endpoint: "127.0.0.1"}},
		{"endpoint with a name for a port", translate.InboundListener{Port: 93,
			Endpoint: "127.0.0.1:http"}},
	}
	var got []txtar.File
	for _, test := range all {
		if test.in.Bind != "" {
			r, err := test.in.Listener(mesh, origin)
			got = append(got, text(t, test.name+": listener", r, err))
		}
		if test.in.MutualTLSMode == model.Unset || test.in.TLS != nil {
			r, err := test.in.Cluster(mesh, redirected, origin)
			got = append(got, text(t, test.name+": cluster", r, err))
		}
		if err := test.in.CheckListener(mesh); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	golden(t, "testdata/inbound.txtar", got)
}

var origin = resource.Origin{Kind: "Kind", Name: "name", Line: 1}

func TestInbound_CheckRefusesInvalidTLS(t *testing.T) {
	in := translate.InboundListener{Port: 80, TLS: &networking.ServerTLSSettings{
		Mode: networking.ServerTLSSettings_MUTUAL, SubjectAltNames: []string{""},
		VerifyCertificateSpki: []string{"short"}}}
	if err := in.CheckListener(mesh.Default()); err == nil || !strings.Contains(err.Error(),
		"TLS of port 80") {
		t.Errorf("%v", err)
	}
}

func TestCapture(t *testing.T) {
	m := mesh.Default()
	m.AccessLog = translate.AccessLog{File: "/dev/stdout", Format: "%PROTOCOL%\n",
		FailureLogCluster: "failures"}
	observed := translate.Telemetries(model.NewMesh("cluster.local", m), redirected,
		model.ClientMode)
	strict := model.EffectivePeerAuthentication{Default: model.MutualTLSSetting{Mode: model.Permissive},
		Ports: map[uint32]model.MutualTLSSetting{80: {Mode: model.Strict},
			9000: {Mode: model.Strict},
			9001: {Mode: model.Disable}}}
	var got []txtar.File
	for _, proxy := range []struct {
		name  string
		node  model.Node
		ports []translate.InboundListener
	}{
		{"REDIRECT", redirected, nil},
		{"TPROXY", tproxy, []translate.InboundListener{
			{Port: 80, Name: "http", Protocol: model.HTTP, MutualTLSMode: model.Strict, HasMeshIdentity: true},
			{Port: 81, Name: "any", Protocol: model.AutoProtocol, MutualTLSMode: model.Disable}}},
	} {
		all, err := translate.UnknownDestinationClusters(m, proxy.node)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			got = append(got, text(t, proxy.name+": "+r.Name, r, nil))
		}
		r, err := translate.VirtualOutbound(m, proxy.node, translate.PassthroughCluster, nil,
			&observed, false)
		got = append(got, text(t, proxy.name+": outbound", r, err))
		for i := range proxy.ports {
			proxy.ports[i].Telemetry = observed
		}
		r, err = translate.VirtualInbound(m, proxy.node, proxy.ports, strict,
			translate.SecurityFilters{},
			nil, &observed, origin)
		got = append(got, text(t, proxy.name+": inbound", r, err))
	}
	golden(t, "testdata/capture.txtar", got)
}

func TestOutbound(t *testing.T) {
	m := mesh.Default()
	m.ProtocolDetectionTimeout = 0
	o := &object.Object{Key: object.Key{Kind: object.ServiceEntry, Name: "db"}}
	services, _ := meshtest.New(t, strings.ReplaceAll(strings.ReplaceAll(static, "http", "tls"),
		"HTTP", "TLS"))
	service := services.Service("web.test", meshtest.Namespace)
	r := &translate.RouteTranslator{Mesh: services.Mesh, Node: sidecar, Port: 80}
	connections := r.ServiceConnectionRoutes(service, &service.Ports[0], nil).Routes
	var got []txtar.File
	for _, test := range []struct {
		name string
		out  translate.OutboundListener
	}{
		{"http", translate.OutboundListener{Address: "127.0.0.1", Port: 80, RouteConfig: "80"}},
		{"any protocol", translate.OutboundListener{Address: "127.0.0.1", Port: 81,
			RouteConfig: "81", DetectHTTP: true,
			Connections: connections}},
		{"captured", translate.OutboundListener{Address: "0.0.0.0", Port: 82, RouteConfig: "82",
			DetectHTTP: true,
			Captured:   true, IPv6: true, FallbackCluster: translate.PassthroughCluster}},
		{"captured by address", translate.OutboundListener{Address: "10.0.0.1", Port: 83,
			RouteConfig: "83",
			Captured:    true, IPv6: true, FallbackCluster: translate.BlackHoleCluster}},
		{"captured TLS", translate.OutboundListener{Address: "0.0.0.0", Port: 84, Captured: true,
			Connections: connections, FallbackCluster: translate.BlackHoleCluster}},
	} {
		r, err := test.out.Listener(m, o.Origin(), o.Origin())
		got = append(got, text(t, test.name, r, err))
	}
	golden(t, "testdata/outbound.txtar", got)
}

func TestPathNormalization(t *testing.T) {
	for how, want := range map[meshapi.MeshConfig_ProxyPathNormalization_NormalizationType]string{
		meshapi.MeshConfig_ProxyPathNormalization_NONE: `{normalizePath: false, mergeSlashes: null}`,
		meshapi.MeshConfig_ProxyPathNormalization_BASE: `{normalizePath: true, mergeSlashes: null}`,
		meshapi.MeshConfig_ProxyPathNormalization_MERGE_SLASHES: `
{normalizePath: true, mergeSlashes: true, pathWithEscapedSlashesAction: null}`,
		meshapi.MeshConfig_ProxyPathNormalization_DECODE_AND_MERGE_SLASHES: `
{normalizePath: true, mergeSlashes: true, pathWithEscapedSlashesAction: UNESCAPE_AND_FORWARD}`,
	} {
		m := mesh.Default()
		m.PathNormalization = how
		r, err := translate.OutboundListener{Address: "127.0.0.1", Port: 80,
			RouteConfig: "80"}.Listener(m)
		if err != nil {
			t.Fatal(err)
		}
		meshtest.ExpectMessage(t, "{filterChains: [{filters: [{typedConfig: "+want+"}]}]}",
			meshtest.Message(t, r))
	}
}
