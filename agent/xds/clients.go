package xds

import (
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/resource"
)

// ClientPolicy determines which resources a client of the xDS socket receives: an Envoy those for
// the node in its bootstrap, an application those for the node in [xds] grpc_bootstrap_file. A
// client that sends another node is refused before resources are translated for it.
type ClientPolicy struct {
	Server             Source                // provides the resources: the embedded discovery server
	IsEnvoyOrAgentUser func(uid uint32) bool // reports whether a user runs Envoy or the agent, or is root
	// EnvoyNodes returns the nodes in the bootstraps of epochs that are live or starting. If a
	// bootstrap is unknown, all is false, and clients for which IsEnvoyOrAgent returns true may
	// send any node.
	EnvoyNodes func() (nodes []*corev3.Node, all bool)
	// SameNode reports whether a client that sends node would receive the same resources as one
	// that sends known, which is the node of a bootstrap.
	SameNode func(known, node *corev3.Node) bool
	// ApplicationNode returns the node in [xds] grpc_bootstrap_file; nil if there is none.
	ApplicationNode func() *corev3.Node
	Conditions      *condition.Registry

	mu     sync.Mutex
	raised bool
	until  time.Time // when ConditionClientRefused is cleared
}

// ConditionClientRefused is active while clients of the xDS socket were refused recently.
const ConditionClientRefused = "xds-client-refused"

// clientRefusedFor is the time after the last refusal at which ConditionClientRefused is cleared.
const clientRefusedFor = 10 * time.Minute

// IsEnvoyOrAgent reports whether a client's user runs Envoy or the agent, or is root.
func (c *ClientPolicy) IsEnvoyOrAgent(peer Peer) bool { return c.IsEnvoyOrAgentUser(peer.UID) }

// Admit returns the node whose resources a client receives. A client for which IsEnvoyOrAgent
// returns false receives those for ApplicationNode, whatever node it sends.
func (c *ClientPolicy) Admit(peer *Peer, node *corev3.Node) (*corev3.Node, error) {
	application := c.ApplicationNode()
	if !c.IsEnvoyOrAgent(*peer) {
		if application == nil {
			return nil, c.refuse(codes.PermissionDenied, "clients of other users than Envoy's are "+
				"not served: [xds] grpc_bootstrap_file is not set or not written yet")
		}
		return application, nil
	}
	nodes, all := c.EnvoyNodes()
	if application != nil {
		nodes = append(nodes, application)
	}
	if all && !slices.ContainsFunc(nodes, func(known *corev3.Node) bool {
		return c.SameNode(known, node)
	}) {
		return nil, c.refuse(codes.PermissionDenied,
			"its node is neither that of a running epoch nor that of [xds] grpc_bootstrap_file")
	}
	return node, nil
}

// Feed returns the feed of the embedded server for an admitted node. It implements Source.
func (c *ClientPolicy) Feed(node *corev3.Node) (*resource.Feed, error) {
	feed, err := c.Server.Feed(node)
	if err != nil {
		return nil, c.refuse(codes.FailedPrecondition, err.Error())
	}
	return feed, nil
}

// refuse raises ConditionClientRefused, and returns a gRPC status with the reason. If the condition
// is active already, it retains its first reason.
func (c *ClientPolicy) refuse(code codes.Code, why string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = time.Now().Add(clientRefusedFor)
	if !c.raised {
		c.raised = true
		c.Conditions.Raise(ConditionClientRefused, condition.Warning,
			"clients of the xDS socket were refused in the last 10 minutes; the first: "+why)
		time.AfterFunc(clientRefusedFor, c.expire)
	}
	return status.Error(code, why)
}

// expire clears ConditionClientRefused if the time c.until has passed. Otherwise it schedules
// another call of itself.
func (c *ClientPolicy) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rest := time.Until(c.until); rest > 0 {
		time.AfterFunc(rest, c.expire)
		return
	}
	c.raised = false
	c.Conditions.Clear(ConditionClientRefused)
}
