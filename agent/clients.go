package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/epoch/record"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

// newClients returns the access control for clients of the xDS socket.
func newClients(
	b *base, server *discovery.Server, e *epochParts, grpc *grpcBootstrap,
) *xds.ClientPolicy {
	nodes := epochNodes{epochs: e.supervisor.Epochs}
	return &xds.ClientPolicy{Server: server, SameNode: discovery.SameNode,
		IsEnvoyOrAgentUser: e.own,
		EnvoyNodes:         nodes.all,
		ApplicationNode:    grpc.node.Load, Conditions: b.board}
}

// xdsGroup is the group of an installed machine whose members may use the xDS socket: Envoy, the
// agent and gRPC applications.
const xdsGroup = "outrider-xds"

// forApplications makes xdsGroup the group of an installed agent's xDS socket. Envoy's group may
// connect as well: an Envoy that was started before an upgrade is not in xdsGroup, and applications
// used Envoy's group before xdsGroup existed.
func forApplications(
	inUnit bool, c *config.Config, sockets xds.SocketOptions,
) xds.SocketOptions {
	group, err := user.LookupGroup(xdsGroup)
	if !inUnit || err != nil {
		return sockets
	}
	gid, err := strconv.Atoi(group.Gid)
	if err != nil {
		return sockets
	}
	if found, err := user.Lookup(c.Envoy.User); err == nil {
		// the GID of a user.User is a decimal number on Linux
		sockets.ExtraGroup, _ = strconv.Atoi(found.Gid)
	}
	sockets.Group = gid
	return sockets
}

// ownUsers returns a function that reports whether a UID is that of root, the agent's user or
// Envoy's user. The keeper reports Envoy's user, because a drop-in of its unit may change it.
func ownUsers(c *config.Config, link *epoch.KeeperLink) func(uid uint32) bool {
	trusted := trustedUsers(c)
	return func(uid uint32) bool {
		if slices.Contains(trusted, uid) {
			return true
		}
		keeper := link.Connection()
		return keeper != nil && keeper.Info().UID == int(uid)
	}
}

// epochOf returns the function for xds.Options.EpochNumber, which maps a peer to its epoch: after a
// restart of the agent, streams of several epochs connect in any order.
func epochOf(supervisor *epoch.Supervisor) func(xds.Peer) int {
	return func(client xds.Peer) int {
		for _, e := range supervisor.Epochs() {
			switch {
			case e.PID != int(client.PID) || !e.Exited.IsZero():
			case e.State == record.StateDraining:
				return resource.DrainingEpoch
			default:
				return e.Number
			}
		}
		return 0
	}
}

// epochNodes reads the xDS nodes in the bootstraps of epochs. It is safe for concurrent use.
type epochNodes struct {
	epochs func() []record.Epoch

	mu    sync.Mutex
	known map[string]bootstrapNode // by path
}

// bootstrapNode is the node of a bootstrap file.
type bootstrapNode struct {
	file os.FileInfo
	node *corev3.Node
}

// all returns the nodes of epochs that have not ended, and whether all are known.
func (n *epochNodes) all() (nodes []*corev3.Node, all bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	known := map[string]bootstrapNode{}
	all = true
	for _, e := range n.epochs() {
		if !e.Exited.IsZero() {
			continue
		}
		found, err := n.read(e.BootstrapPath)
		if err != nil { // the file is not written yet, or was removed
			all = false
			continue
		}
		known[e.BootstrapPath] = found
		nodes = append(nodes, found.node)
	}
	n.known = known
	return nodes, all
}

// read returns the node of a bootstrap file. It uses the cached node only while the file is
// unchanged, because epoch numbers, and so paths, are reused.
func (n *epochNodes) read(path string) (bootstrapNode, error) {
	file, err := os.Stat(path)
	if err != nil {
		return bootstrapNode{}, err
	}
	if known, ok := n.known[path]; ok && os.SameFile(known.file, file) &&
		known.file.ModTime().Equal(file.ModTime()) {
		return known, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return bootstrapNode{}, err
	}
	node, err := parseNode(content)
	return bootstrapNode{file, node}, err
}

// parseNode returns the node of a bootstrap (JSON) of Envoy or gRPC.
func parseNode(content []byte) (*corev3.Node, error) {
	var bootstrap struct{ Node json.RawMessage }
	if err := json.Unmarshal(content, &bootstrap); err != nil {
		return nil, fmt.Errorf("decode the node of an epoch's bootstrap: %w", err)
	}
	node := &corev3.Node{}
	if len(bootstrap.Node) == 0 {
		return node, nil
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(bootstrap.Node,
		node); err != nil {
		return nil, fmt.Errorf("decode the node of an epoch's bootstrap: %w", err)
	}
	return node, nil
}
