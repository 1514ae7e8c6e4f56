// Command dnsproxy runs the DNS server of Istio's agent with COUNT host names: svc0.mesh.test,
// svc1.mesh.test and so on. Usage: dnsproxy ADDRESS COUNT.
package main

import (
	"fmt"
	"os"
	"strconv"

	"istio.io/istio/pkg/dns/client"
	"istio.io/istio/pkg/dns/proto"
)

func main() {
	server, err := client.NewLocalDNSServer("default", "default.svc.cluster.local", os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	count, _ := strconv.Atoi(os.Args[2])
	table := map[string]*istio_networking_nds_v1.NameTable_NameInfo{}
	for i := range count {
		table[fmt.Sprintf("svc%d.mesh.test", i)] = &istio_networking_nds_v1.NameTable_NameInfo{
			Ips: []string{fmt.Sprintf("240.240.%d.%d", i/250, i%250)}, Registry: "External"}
	}
	server.UpdateLookupTable(&istio_networking_nds_v1.NameTable{Table: table})
	server.StartDNS()
	select {}
}
