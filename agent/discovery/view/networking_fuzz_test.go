package view_test

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/validate"
	"outrider.org/outrider/agent/discovery/view"
)

// FuzzNetworking translates arbitrary specs of a ServiceEntry, its DestinationRule and
// VirtualService, a Gateway and a Sidecar, for a gateway and for a sidecar with interception.
func FuzzNetworking(f *testing.F) {
	const entry = "hosts: [a.test]\nlocation: MESH_INTERNAL\nresolution: STATIC\nports: " +
		"[{number: 80, name: http, protocol: HTTP}]\nendpoints: [{address: 10.0.0.1, labels: " +
		"{v: a, security.istio.io/tlsMode: istio}}]"
	const rule = "host: a.test\nsubsets: [{name: a, labels: {v: a}}]\ntrafficPolicy: {tls: " +
		"{mode: MUTUAL, credentialName: 'sds://a'}}"
	const route = "hosts: [a.test]\ngateways: [mesh, a]\n" +
		"http: [{route: [{destination: {host: a.test}}]}]"
	f.Add(entry, rule, route, "servers: [{port: {number: 443, name: a, protocol: TLS}, "+
		"hosts: ['*'], tls: {mode: AUTO_PASSTHROUGH}}]", "egress: [{port: {number: 3128, "+
		"protocol: HTTP_PROXY}, hosts: ['*/*']}]")
	f.Add("hosts: ['*.test']\nresolution: DYNAMIC_DNS\nports: [{number: 80, name: http, "+
		"protocol: HTTP}, {number: 443, name: tls, protocol: TLS}]",
		"host: '*.test'\ntrafficPolicy: {tls: {mode: SIMPLE}}",
		"hosts: ['*.test']\ntls: [{match: [{sniHosts: ['*.test']}], "+
			"route: [{destination: {host: '*.test'}}]}]",
		"servers: [{port: {number: 443, name: a, protocol: HTTPS}, hosts: ['./*.test'], tls: {mode: "+
			"MUTUAL, credentialName: 'sds://a', caCertCredentialName: 'sds://b'}}]",
		"egress: [{port: {number: 80, name: a, protocol: HTTP}, bind: 127.0.0.1, hosts: ["+
			"'./*.test']}]\ningress: [{port: {number: 81, name: a, protocol: HTTP}, "+
			"defaultEndpoint: '127.0.0.1:8080'}]")
	f.Fuzz(func(t *testing.T, entry, rule, route, gateway, sidecar string) {
		m := mesh.Default()
		m.HTTPProxyPort = uint32(len(rule)) % 100
		m.DynamicDNS, m.Credentials.Socket = len(entry)%2 == 0, "/run/sds.sock"
		w := model.NewMesh("cluster.local", m)
		for _, in := range []struct {
			kind object.Kind
			spec proto.Message
			text string
		}{{object.ServiceEntry, &networking.ServiceEntry{}, entry},
			{object.DestinationRule, &networking.DestinationRule{}, rule},
			{object.VirtualService, &networking.VirtualService{}, route},
			{object.Gateway, &networking.Gateway{}, gateway},
			{object.Sidecar, &networking.Sidecar{}, sidecar}} {
			if o := valid(in.kind, in.spec, in.text); o != nil {
				w.Apply([]object.Change{{New: o}})
			}
		}
		for _, node := range []model.Node{{Type: model.Router, Namespace: "shop", Identity: true},
			{Type: model.Sidecar, Namespace: "shop", Identity: true, Interception: model.Redirect}} {
			viewOf(t, &meshtest.Mesh{Mesh: w}, node, view.NewCache()).Update(w.EverythingChanged())
		}
	})
}

// valid returns an object of the namespace shop whose spec is decoded from text; nil if it is
// invalid.
func valid(kind object.Kind, spec proto.Message, text string) *object.Object {
	encoded, err := yaml.YAMLToJSON([]byte(text))
	if err != nil || protojson.Unmarshal(encoded, spec) != nil {
		return nil
	}
	o := &object.Object{Key: object.Key{Kind: kind, Namespace: "shop", Name: "a"}, Spec: spec}
	for _, finding := range validate.Object(o) {
		if finding.Severity == condition.Error {
			return nil
		}
	}
	return o
}
