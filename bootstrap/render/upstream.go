package render

import (
	"fmt"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"

	// A bootstrap of the upstream server may contain any type. Unlike protobuf, JSON needs the
	// descriptor of each type, so all are linked.
	_ "outrider.org/outrider/bootstrap/envoytypes"
)

// fromUpstream returns a bootstrap of the upstream server (protobuf) with the parts of own that
// Outrider needs: node, admin interface, and clusters and listeners, which replace those with the
// same name or port. Fields that the server does not set are those of own.
func fromUpstream(
	own *bootstrapv3.Bootstrap, content []byte,
) (*bootstrapv3.Bootstrap, error) {
	sent := &bootstrapv3.Bootstrap{}
	if err := proto.Unmarshal(content, sent); err != nil {
		return nil, fmt.Errorf("decode the bootstrap of the upstream server: %w", err)
	}
	if err := protorange.Range(sent.ProtoReflect(), refuseUnknown); err != nil {
		return nil, err
	}
	static, result := own.StaticResources, sent.GetStaticResources()
	for _, c := range result.GetClusters() {
		if !slices.ContainsFunc(static.Clusters, func(of *clusterv3.Cluster) bool {
			return of.Name == c.Name
		}) {
			static.Clusters = append(static.Clusters, c)
		}
	}
	for _, l := range result.GetListeners() {
		if !slices.ContainsFunc(static.Listeners, func(of *listenerv3.Listener) bool {
			return of.Name == l.Name || of.Address.GetSocketAddress().GetPortValue() ==
				l.Address.GetSocketAddress().GetPortValue()
		}) {
			static.Listeners = append(static.Listeners, l)
		}
	}
	static.Secrets = result.GetSecrets()
	sent.Node, sent.Admin, sent.StaticResources = nil, nil, nil
	own.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if to := sent.ProtoReflect(); !to.Has(f) {
			to.Set(f, v)
		}
		return true
	})
	return sent, nil
}

// refuseUnknown refuses what would be missing in Envoy's JSON: unknown fields, and messages whose
// types are not linked.
func refuseUnknown(path protopath.Values) error {
	what := ""
	switch last := path.Index(-1); last.Step.Kind() {
	case protopath.UnknownAccessStep:
		what = "an unknown field"
	case protopath.FieldAccessStep: // an Any that cannot be decoded has its own fields in the path
		if last.Step.FieldDescriptor().FullName() == "google.protobuf.Any.type_url" {
			what = "the unknown type " + last.Value.String()
		}
	}
	if what == "" {
		return nil
	}
	return fmt.Errorf("the bootstrap of the upstream server has %s at %s", what, path.Path[1:])
}
