// Package objects is the client of the API group network.takt.dev. It is made of client-go's generic parts: for three
// kinds without versions of their own a generated clientset says nothing more, and controller-runtime brings a
// manager and caches for a controller whose one loop looks at everything anyway.
package objects

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
)

// Client reads and writes the objects.
type Client struct {
	rest      rest.Interface
	Networks  *gentype.ClientWithList[*network.TaktNetwork, *network.TaktNetworkList]
	Schedules *gentype.ClientWithList[*network.GateSchedule, *network.GateScheduleList]
	Nodes     *gentype.ClientWithList[*network.TaktNode, *network.TaktNodeList]
}

// Scheme knows the objects: for events about them.
var Scheme = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	if err := network.AddToScheme(scheme); err != nil {
		panic(err)
	}
	return scheme
}()

// New makes a client.
func New(config *rest.Config) (*Client, error) {
	own := rest.CopyConfig(config)
	own.GroupVersion, own.APIPath = &network.GroupVersion, "/apis"
	own.NegotiatedSerializer = serializer.NewCodecFactory(Scheme).WithoutConversion()
	// Custom resources are JSON, whatever the configuration says of Kubernetes' own.
	own.ContentConfig.ContentType, own.ContentConfig.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the API server: %w", err)
	}
	codec := runtime.NewParameterCodec(Scheme)
	return &Client{
		rest: client,
		Networks: gentype.NewClientWithList("taktnetworks", client, codec, "",
			func() *network.TaktNetwork { return &network.TaktNetwork{} }, func() *network.TaktNetworkList { return &network.TaktNetworkList{} }),
		Schedules: gentype.NewClientWithList("gateschedules", client, codec, "",
			func() *network.GateSchedule { return &network.GateSchedule{} }, func() *network.GateScheduleList { return &network.GateScheduleList{} }),
		Nodes: gentype.NewClientWithList("taktnodes", client, codec, "",
			func() *network.TaktNode { return &network.TaktNode{} }, func() *network.TaktNodeList { return &network.TaktNodeList{} }),
	}, nil
}

// Informer keeps all objects of a kind, whose plural is resource, at hand, and calls changed after each change.
func (c *Client) Informer(resource string, of runtime.Object, changed func()) cache.SharedIndexInformer {
	return Informer(cache.NewListWatchFromClient(c.rest, resource, metav1.NamespaceAll, fields.Everything()), of, changed)
}

// Informer keeps all that a list and its watch have at hand, and calls changed after each change.
func Informer(source cache.ListerWatcher, of runtime.Object, changed func()) cache.SharedIndexInformer {
	informer := cache.NewSharedIndexInformer(source, of, 0, cache.Indexers{})
	// It only fails once the informer has stopped.
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, UpdateFunc: func(_, _ any) { changed() }, DeleteFunc: func(any) { changed() },
	})
	return informer
}

// All are the objects of an informer that has synced, which are not to be changed.
func All[T any](informer cache.SharedIndexInformer) []T {
	stored := informer.GetStore().List()
	all := make([]T, 0, len(stored))
	for _, one := range stored {
		if object, ok := one.(T); ok {
			all = append(all, object)
		}
	}
	return all
}

// Run runs informers until the context ends, and returns when all know what is there.
func Run(ctx context.Context, informers ...cache.SharedIndexInformer) error {
	var synced []cache.InformerSynced
	for _, informer := range informers {
		go informer.Run(ctx.Done())
		synced = append(synced, informer.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return ctx.Err()
	}
	return nil
}
