package model

// NodeType is what a proxy is for.
type NodeType string

// The types, as node ids begin.
const (
	Sidecar NodeType = "sidecar"
	Router  NodeType = "router"
)

// Node is what translation wants to know of a proxy. Proxies with equal ones get the same resources.
type Node struct {
	Type      NodeType
	Namespace string
	Labels    map[string]string
}
