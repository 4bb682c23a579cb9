// node producer.js ID TOTAL: places an order with an ORM. An event is an entity like any other,
// mapped to the view outbox.events; creating one in a transaction enqueues it.
import { DataTypes, Sequelize } from 'sequelize'

const sequelize = new Sequelize(process.env.PGDATABASE, process.env.PGUSER, process.env.PGPASSWORD, {
	dialect: 'postgres', host: process.env.PGHOST, port: process.env.PGPORT, logging: false,
})

const Order = sequelize.define('Order', {
	id: { type: DataTypes.INTEGER, primaryKey: true },
	total: DataTypes.DECIMAL,
}, { tableName: 'orders', timestamps: false })

const OutboxEvent = sequelize.define('OutboxEvent', {
	eventId: { type: DataTypes.UUID, primaryKey: true, field: 'event_id' }, // left out: outbox makes one
	aggregateType: { type: DataTypes.STRING, allowNull: false, field: 'aggregate_type' },
	aggregateId: { type: DataTypes.STRING, allowNull: false, field: 'aggregate_id' },
	eventType: { type: DataTypes.STRING, allowNull: false, field: 'event_type' },
	payload: { type: DataTypes.JSONB, allowNull: false },
	headers: DataTypes.JSONB,
	publishState: { type: DataTypes.STRING, field: 'publish_state' }, // to read only
}, { schema: 'outbox', tableName: 'events', timestamps: false })

const [id, total] = process.argv.slice(2)
try {
	const event = await sequelize.transaction(async transaction => {
		const order = await Order.create({ id, total }, { transaction })
		return OutboxEvent.create({
			aggregateType: 'order', aggregateId: id, eventType: 'order.placed',
			payload: { id: Number(order.id), total: Number(order.total) }, headers: { 'ce-producer': 'sequelize' },
		}, { transaction })
	})
	console.log('placed order', id, 'with event', event.eventId)
	const found = await OutboxEvent.findByPk(event.eventId)
	console.log('it is', found.publishState)
} catch (error) {
	console.error('no order, no event:', error.message)
	process.exitCode = 1
} finally {
	await sequelize.close()
}
