package translate

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/resource"
)

// nameTableName is the name of the resource with the table of names. Each proxy has only one.
const nameTableName = "names"

// Field numbers of Istio's NameTable, a map of hosts (field 1, with key 1 and value 2), and of its
// NameInfo.
const (
	tableField     = 1
	hostField      = 1
	infoField      = 2
	addressField   = 1
	registryField  = 2
	shortField     = 3
	namespaceField = 4
)

// NameTable returns the table with which a proxy's agent answers DNS queries (NDS). Services of
// Kubernetes, in a domain such as cluster.local, have short names, too.
func NameTable(names []model.DNSName, domain string) *resource.Resource {
	var table []byte
	for _, n := range names {
		var info []byte
		for _, address := range n.Addresses {
			info = appendText(info, addressField, address.String())
		}
		if short, namespace, ok := kubernetesName(n, domain); ok {
			info = appendText(info, registryField, "Kubernetes")
			info = appendText(info, shortField, short)
			info = appendText(info, namespaceField, namespace)
		}
		entry := appendText(nil, hostField, n.Host)
		entry = protowire.AppendTag(entry, infoField, protowire.BytesType)
		entry = protowire.AppendBytes(entry, info)
		table = protowire.AppendTag(table, tableField, protowire.BytesType)
		table = protowire.AppendBytes(table, entry)
	}
	return resource.FromEncoded(resource.NameTableType, nameTableName, table)
}

func appendText(message []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(message, field, protowire.BytesType), text)
}

// kubernetesName returns the name and namespace of a service that is a Kubernetes Service: it comes
// from a registry, whose objects have a colon in their names, and its host is in the domain.
func kubernetesName(n model.DNSName, domain string) (short, namespace string, ok bool) {
	rest, inDomain := strings.CutSuffix(n.Host, ".svc."+domain)
	if !inDomain || !strings.Contains(n.Service.OldestServiceEntry().Name, ":") {
		return "", "", false
	}
	return strings.Cut(rest, ".")
}
