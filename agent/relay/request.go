package relay

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
)

// request is a decoded DiscoveryRequest or DeltaDiscoveryRequest. Only the first request of a
// stream may be large.
type request struct {
	message []byte // the request in encoded form, as received
	node    *corev3.Node
	typeURL string
	nonce   string
	refusal string // error message of a NACK; "" otherwise
	refused bool

	version string   // version_info; only in the state of the world
	names   []string // state of the world: all names; incremental: newly subscribed names

	unsubscribed []string // names that the client unsubscribes from; only incremental
	// versions that the client already has, by name; only incremental
	initial map[string]string

	problem *rpcstatus.Status // error detail in a request that the agent sends; nil: none
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

// shortened returns the first maxRefusalBytes of an error message.
func shortened(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxRefusalBytes)], "")
}

// replaceNode replaces the node in the encoded message r.message by r.node.
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
	node := message.GetNode() // never nil: request.node was decoded from this message
	proto.Reset(node)
	proto.Merge(node, r.node)
	text, err := proto.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	r.message = text
	return nil
}

// encode returns the encoded form of a request that the agent itself sends.
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
