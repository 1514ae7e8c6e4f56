package relay

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
)

// request is a request of either kind, decoded. Requests other than a stream's first are small.
type request struct {
	message []byte // as received
	node    *corev3.Node
	typeURL string
	nonce   string
	refusal string // error message; "" = none
	refused bool

	version string   // state of the world
	names   []string // state of the world: all names; incremental: new names

	unsubscribed []string          // incremental
	initial      map[string]string // incremental: versions by name

	problem *rpcstatus.Status // of a request of the agent; nil = none
}

func parseRequest(message []byte, delta bool) (*request, error) {
	if !delta {
		var r discoveryv3.DiscoveryRequest
		if err := proto.Unmarshal(message, &r); err != nil {
			return nil, fmt.Errorf("decode a DiscoveryRequest: %w", err)
		}
		return &request{message: message, node: r.Node, typeURL: r.TypeUrl, nonce: r.ResponseNonce,
			refusal: shortened(r.ErrorDetail.GetMessage()), refused: r.ErrorDetail != nil,
			version: r.VersionInfo, names: r.ResourceNames}, nil
	}
	var r discoveryv3.DeltaDiscoveryRequest
	if err := proto.Unmarshal(message, &r); err != nil {
		return nil, fmt.Errorf("decode a DeltaDiscoveryRequest: %w", err)
	}
	return &request{message: message, node: r.Node, typeURL: r.TypeUrl, nonce: r.ResponseNonce,
		refusal: shortened(r.ErrorDetail.GetMessage()), refused: r.ErrorDetail != nil,
		names: r.ResourceNamesSubscribe, unsubscribed: r.ResourceNamesUnsubscribe,
		initial: r.InitialResourceVersions}, nil
}

// shortened returns at most maxRefusalBytes of an error message.
func shortened(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxRefusalBytes)], "")
}

// replaceNode makes the message one with the request's node.
func (r *request) replaceNode(delta bool) error {
	var message interface {
		proto.Message
		GetNode() *corev3.Node
	} = &discoveryv3.DiscoveryRequest{}
	if delta {
		message = &discoveryv3.DeltaDiscoveryRequest{}
	}
	if err := proto.Unmarshal(r.message, message); err != nil {
		return fmt.Errorf("decode a request: %w", err)
	}
	node := message.GetNode() // not nil: the request has one
	proto.Reset(node)
	proto.Merge(node, r.node)
	text, err := proto.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	r.message = text
	return nil
}

// encode returns a request of the agent as a message.
func (r *request) encode(delta bool) ([]byte, error) {
	var message proto.Message = &discoveryv3.DiscoveryRequest{Node: r.node, TypeUrl: r.typeURL,
		VersionInfo: r.version, ResourceNames: r.names, ResponseNonce: r.nonce,
		ErrorDetail: r.problem}
	if delta {
		message = &discoveryv3.DeltaDiscoveryRequest{Node: r.node, TypeUrl: r.typeURL,
			ResourceNamesSubscribe: r.names, ResourceNamesUnsubscribe: r.unsubscribed,
			InitialResourceVersions: r.initial, ResponseNonce: r.nonce,
			ErrorDetail: r.problem}
	}
	text, err := proto.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode a request: %w", err)
	}
	return text, nil
}
